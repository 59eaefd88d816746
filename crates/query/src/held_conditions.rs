//! Conditions that hold for every row of a part by its statistics, as `step > 1000` does for a part whose smallest step is larger.
//! Such a part is like one without these conditions.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::utils::collect_columns;
use probe_proto::table::Table;

use super::prune::Pruner;
use super::scan_unit::{ScanUnit, UnitStatistics};

/// Conditions of a scan that compare integers and points in time with constants.
pub(super) struct HeldConditions {
    /// Rules out what has no row for which one of the conditions is false.
    opposite: Pruner,
    /// The indices in the table of their columns.
    columns: Vec<usize>,
    table: &'static Table,
}

impl HeldConditions {
    /// The first of these `conditions` over `read`, whose columns are at `table_columns` in the table, and all others. None where
    /// none is a comparison with a constant.
    pub(super) fn split(
        conditions: &[Arc<dyn PhysicalExpr>],
        read: &SchemaRef,
        table_columns: &[usize],
        table: &'static Table,
    ) -> Option<(Self, Vec<Arc<dyn PhysicalExpr>>)> {
        let (mut any, mut columns, mut others) = (None::<Arc<dyn PhysicalExpr>>, Vec::new(), Vec::new());
        for condition in conditions {
            match opposite(condition, read) {
                Some((opposite, column)) => {
                    any = Some(match any {
                        Some(any) => Arc::new(BinaryExpr::new(any, Operator::Or, opposite)),
                        None => opposite,
                    });
                    columns.push(table_columns[column]);
                }
                None => others.push(Arc::clone(condition)),
            }
        }
        let opposite = Pruner::learned(any?, Arc::clone(read), table);
        Some((Self { opposite, columns, table }, others))
    }

    /// Whether all conditions hold for every row of a part. A value that is NULL satisfies none.
    pub(super) fn hold_in(&self, part: &ScanUnit) -> bool {
        self.columns.iter().all(|column| part.range(self.table, *column).1 == 0) && self.opposite.rules_out(part)
    }
}

/// The condition that holds where this one does not, and the index of its column; None for other conditions.
fn opposite(condition: &Arc<dyn PhysicalExpr>, read: &SchemaRef) -> Option<(Arc<dyn PhysicalExpr>, usize)> {
    let comparison = condition.downcast_ref::<BinaryExpr>()?;
    let operator = match comparison.op() {
        Operator::Lt => Operator::GtEq,
        Operator::LtEq => Operator::Gt,
        Operator::Gt => Operator::LtEq,
        Operator::GtEq => Operator::Lt,
        Operator::Eq => Operator::NotEq,
        _ => return None,
    };
    let (left, right) = (comparison.left(), comparison.right());
    // The column itself, and not what a cast makes of it: a cast may be NULL, or give values in another order (the time of a day).
    let column = match (left.downcast_ref::<Column>(), right.downcast_ref::<Column>()) {
        (Some(column), None) if collect_columns(right).is_empty() => column.index(),
        (None, Some(column)) if collect_columns(left).is_empty() => column.index(),
        _ => return None,
    };
    let kind = read.field(column).data_type();
    if !matches!(kind, DataType::Int32 | DataType::Int64 | DataType::Timestamp(..)) {
        return None;
    }
    Some((Arc::new(BinaryExpr::new(Arc::clone(left), operator, Arc::clone(right))), column))
}
