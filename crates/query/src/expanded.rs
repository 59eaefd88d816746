//! The size of a plan's expressions once names are expanded: the optimizer replaces the name of a column by the expression
//! behind it, and a chain of 40 names, each using the previous one twice, expands to 10^12 expressions.

use std::collections::HashMap;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan};
use probe_common::error::Error;

use super::statement_complexity::MAX_EXPRESSIONS;

/// Refuses a plan with too many expressions once names are expanded.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    ExpressionCount(0).columns(plan).map(|_| ())
}

/// The number of expressions that have been counted.
struct ExpressionCount(usize);

impl ExpressionCount {
    /// The number of expressions of each column of a plan, names expanded.
    fn columns(&mut self, plan: &LogicalPlan) -> Result<Vec<usize>> {
        let (mut known, mut sizes) = (HashMap::new(), Vec::new());
        for input in plan.inputs() {
            let columns = self.columns(input)?;
            if let LogicalPlan::Union(_) = plan {
                // The rows of the inputs are one below the other, so a column is as large as its largest input.
                sizes.resize(columns.len().max(sizes.len()), 1);
                sizes.iter_mut().zip(columns).for_each(|(size, other)| *size = other.max(*size));
            } else {
                known.extend(input.schema().columns().into_iter().zip(columns.iter().copied()));
                sizes.extend(columns);
            }
        }
        let mut own = Vec::new();
        plan.apply_expressions(|expression| {
            own.push(self.size(expression, &known)?);
            Ok(TreeNodeRecursion::Continue)
        })?;
        let wide = plan.schema().fields().len();
        let mut columns = match plan {
            LogicalPlan::Projection(_) => own,
            LogicalPlan::Aggregate(aggregate) => {
                // The result of an aggregate function counts as one expression.
                own.truncate(aggregate.group_expr.len());
                own
            }
            _ => sizes,
        };
        columns.resize(wide, 1);
        Ok(columns)
    }

    fn size(&mut self, expression: &Expr, known: &HashMap<Column, usize>) -> Result<usize> {
        let mut size = 0_usize;
        expression.apply(|part| {
            let one = match part {
                Expr::Column(column) => known.get(column).copied().unwrap_or(1),
                Expr::ScalarSubquery(query) => self.within(&query.subquery)?,
                Expr::Exists(exists) => self.within(&exists.subquery.subquery)?,
                Expr::InSubquery(within) => self.within(&within.subquery.subquery)?,
                Expr::SetComparison(compared) => self.within(&compared.subquery.subquery)?,
                _ => 1,
            };
            size = size.saturating_add(one);
            Ok(TreeNodeRecursion::Continue)
        })?;
        self.0 = self.0.saturating_add(size);
        if self.0 > MAX_EXPRESSIONS {
            let error = Error::failed(format!(
                "the query comes to more than {MAX_EXPRESSIONS} expressions where each name stands for what is behind it"
            ));
            let error = error.hint("a name from WITH counts as what it is made of each time it is used; ask in parts");
            return Err(DataFusionError::External(Box::new(error)));
        }
        Ok(size)
    }

    fn within(&mut self, plan: &LogicalPlan) -> Result<usize> {
        self.columns(plan).map(|_| 1)
    }
}
