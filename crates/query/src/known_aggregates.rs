//! COUNT, SUM, AVG, MIN and MAX of plain columns from the statistics of segments and row groups instead of their rows.
//!
//! There are sums only where they are exact in any order of adding (as all times of agents are), so that adding them up gives
//! the result of a scan.

use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use probe_proto::table::Table;

use super::plain_argument::PlainArgument;
use super::scan_unit::{ScanUnit, UnitStatistics};

/// One group: its values, and the state that each aggregate's accumulator would have after its rows.
#[derive(Debug, Clone)]
pub(super) struct KnownGroup {
    pub(super) group: Vec<ScalarValue>,
    /// The states in the form that `Accumulator::merge_batch` takes.
    pub(super) states: Vec<Vec<ArrayRef>>,
}

/// The group of a part's rows; None where the part has to be read. `table_columns` are the indices in the table of the scan's
/// columns.
pub(super) fn known_group(
    part: &ScanUnit,
    table: &Table,
    table_columns: &[usize],
    groups: &[usize],
    aggregates: &[Arc<AggregateFunctionExpr>],
) -> Option<KnownGroup> {
    let identity = part.identity()?;
    let group =
        groups.iter().map(|column| Some(identity.value(*table_columns.get(*column)?))).collect::<Option<_>>()?;
    let states = aggregates.iter().map(|aggregate| {
        let state = state(part, table, table_columns, aggregate)?;
        let fields = aggregate.state_fields().ok()?;
        let same = fields.len() == state.len()
            && fields.iter().zip(&state).all(|(field, value)| *field.data_type() == value.data_type());
        same.then(|| state.iter().map(ScalarValue::to_array).collect::<Result<Vec<_>, _>>().ok()).flatten()
    });
    Some(KnownGroup { group, states: states.collect::<Option<_>>()? })
}

fn state(
    part: &ScanUnit,
    table: &Table,
    table_columns: &[usize],
    aggregate: &AggregateFunctionExpr,
) -> Option<Vec<ScalarValue>> {
    let rows = part.rows();
    let (column, nulls) = match PlainArgument::of(aggregate)? {
        PlainArgument::Column(column) => {
            let index = *table_columns.get(column)?;
            (Some(index), part.range(table, index).1)
        }
        PlainArgument::Constant => (None, 0),
    };
    let values = rows.checked_sub(nulls)?;
    let sum = |index| if values == 0 { Some(None) } else { part.sum(table, index).map(Some) };
    match (aggregate.fun().name(), column) {
        ("count", _) => Some(vec![ScalarValue::Int64(Some(values as i64))]),
        ("sum", Some(index)) => Some(vec![ScalarValue::Float64(sum(index)?)]),
        ("avg", Some(index)) => Some(vec![ScalarValue::UInt64(Some(values as u64)), ScalarValue::Float64(sum(index)?)]),
        ("min", Some(index)) => Some(vec![part.range(table, index).0?.0]),
        ("max", Some(index)) => Some(vec![part.range(table, index).0?.1]),
        _ => None,
    }
}
