//! What files say of their row groups in place of their rows: COUNT, SUM, AVG, MIN and MAX of plain columns.
//!
//! Sums are there where they are exact in any order of adding (as all times of agents are), so that whoever adds them up
//! finds what a scan would find.

use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use probe_proto::table::Table;

use super::scan_unit::{Known, ScanUnit};

/// One group: its values, and what every aggregate's accumulator would say of its rows.
#[derive(Debug, Clone)]
pub(super) struct KnownGroup {
    pub(super) group: Vec<ScalarValue>,
    /// As `Accumulator::merge_batch` takes it.
    pub(super) states: Vec<Vec<ArrayRef>>,
}

/// That of a part's rows; None where something of it has to be read. `places` are the scan's columns in the table.
pub(super) fn known(
    part: &ScanUnit,
    table: &Table,
    places: &[usize],
    groups: &[usize],
    aggregates: &[Arc<AggregateFunctionExpr>],
) -> Option<KnownGroup> {
    // What is in memory is faster added up than told from what is not.
    part.file()?;
    let identity = part.identity()?;
    let group = groups.iter().map(|column| Some(identity.value(*places.get(*column)?))).collect::<Option<_>>()?;
    let states = aggregates.iter().map(|aggregate| {
        let state = state(part, table, places, aggregate)?;
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
    places: &[usize],
    aggregate: &AggregateFunctionExpr,
) -> Option<Vec<ScalarValue>> {
    let [argument] = &aggregate.expressions()[..] else { return None };
    let rows = part.rows();
    let (column, nulls) = match argument.downcast_ref::<Column>() {
        Some(column) => {
            let place = *places.get(column.index())?;
            (Some(place), part.range(table, place).1)
        }
        None if argument.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null()) => (None, 0),
        None => return None,
    };
    let values = rows.checked_sub(nulls)?;
    let sum = |place| if values == 0 { Some(None) } else { part.sum(table, place).map(Some) };
    match (aggregate.fun().name(), column) {
        ("count", _) => Some(vec![ScalarValue::Int64(Some(values as i64))]),
        ("sum", Some(place)) => Some(vec![ScalarValue::Float64(sum(place)?)]),
        ("avg", Some(place)) => Some(vec![ScalarValue::UInt64(Some(values as u64)), ScalarValue::Float64(sum(place)?)]),
        ("min", Some(place)) => Some(vec![part.range(table, place).0?.0]),
        ("max", Some(place)) => Some(vec![part.range(table, place).0?.1]),
        _ => None,
    }
}
