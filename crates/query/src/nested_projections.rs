//! Merges projections of projections before DataFusion does it: where two that follow one another are written alike
//! (`x + x AS x` of `x + x AS x`), DataFusion 55.2 takes them for the same and leaves one out, which is a wrong answer.
//! Later releases don't.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, HashMap, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection};
use datafusion::optimizer::optimizer::{ApplyOrder, Optimizer};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// DataFusion's rules, with this one before the one that makes the mistake.
pub(super) fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    let index = rules.iter().position(|rule| rule.name() == "optimize_projections").unwrap_or_default();
    rules.insert(index, Arc::new(ComposeProjections));
    rules
}

#[derive(Debug)]
struct ComposeProjections;

impl OptimizerRule for ComposeProjections {
    fn name(&self) -> &'static str {
        "compose_projections"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Projection(mut outer) = plan else { return Ok(Transformed::no(plan)) };
        let mut changed = false;
        while let LogicalPlan::Projection(inner) = outer.input.as_ref() {
            if !may_compose(&outer, inner)? {
                break;
            }
            outer = compose(&outer, inner)?;
            changed = true;
        }
        let plan = LogicalPlan::Projection(outer);
        Ok(if changed { Transformed::yes(plan) } else { Transformed::no(plan) })
    }
}

/// Whether the two projections may be merged. An expression that is used more than once would be computed more than once, so the
/// projections stay as they are then, unless the two are written alike.
fn may_compose(outer: &Projection, inner: &Projection) -> Result<bool> {
    if outer.expr.iter().chain(&inner.expr).any(|expr| expr.is_volatile() || has_query(expr)) {
        return Ok(false);
    }
    let mut used = HashMap::<&Column, usize>::new();
    outer.expr.iter().for_each(|expr| expr.add_column_ref_counts(&mut used));
    for (column, times) in used {
        let expr = &inner.expr[inner.schema.index_of_column(column)?];
        if times > 1 && !is_simple(expr) {
            return Ok(outer.expr == inner.expr);
        }
    }
    Ok(true)
}

/// Whether computing an expression twice costs nothing.
fn is_simple(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_simple(&alias.expr),
        expr => matches!(expr, Expr::Column(_) | Expr::Literal(..)),
    }
}

/// Whether an expression contains a query, which may refer to columns that this rule does not see.
fn has_query(expr: &Expr) -> bool {
    let is_query = |expr: &Expr| {
        Ok(matches!(expr, Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)))
    };
    expr.exists(is_query).unwrap_or(true)
}

/// The outer projection, rewritten over the input of the inner one.
fn compose(outer: &Projection, inner: &Projection) -> Result<Projection> {
    let names = NamePreserver::new_for_projection();
    let composed = outer.expr.iter().map(|expr| {
        let name = names.save(expr);
        let within = expr.clone().transform_up(|expr| {
            let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
            let meant = &inner.expr[inner.schema.index_of_column(column)?];
            Ok(Transformed::yes(meant.clone().unalias()))
        })?;
        Ok(name.restore(within.data))
    });
    let composed = composed.collect::<Result<Vec<_>>>()?;
    Projection::try_new_with_schema(composed, Arc::clone(&inner.input), Arc::clone(&outer.schema))
}
