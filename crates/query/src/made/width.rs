//! How many rows a batch of a query has: fewer where each row has much, so that no batch is large.

use std::cell::Cell;

use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};

use super::growth::scalar_bytes;

/// Values of a batch, each of up to 16 bytes. A batch has [`MAX_BATCH_ROWS`] rows where a row has 64 values or fewer.
const MAX_BATCH_VALUES: usize = 64 * MAX_BATCH_ROWS;
/// Bytes of a constant that count as one value: it is copied more often than others are.
const CONSTANT: usize = 4;
/// Rows of a batch, where there is no reason for fewer.
pub(super) const MAX_BATCH_ROWS: usize = 8192;

/// Rows that the batches of a plan may have.
pub(crate) fn rows(plan: &LogicalPlan) -> Result<usize> {
    let widest = Cell::new(1);
    plan.apply_with_subqueries(|node| {
        let mut values = node.schema().fields().len();
        // The rows of VALUES stand below one another.
        if !matches!(node, LogicalPlan::Values(_)) {
            node.apply_expressions(|expression| {
                values += values_of(expression)?;
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        widest.set(widest.get().max(values));
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok((MAX_BATCH_VALUES / widest.get()).clamp(1, MAX_BATCH_ROWS))
}

/// Values that an expression makes for a row.
fn values_of(expression: &Expr) -> Result<usize> {
    let mut values = 0_usize;
    expression.apply(|part| {
        match part {
            Expr::Column(_) => {}
            Expr::Literal(value, _) => values += scalar_bytes(value) / CONSTANT,
            Expr::InList(list) => {
                // The list is looked up in a set, and its items are not copied for each row.
                values += 1 + values_of(&list.expr)?;
                return Ok(TreeNodeRecursion::Jump);
            }
            _ => values += 1,
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(values)
}
