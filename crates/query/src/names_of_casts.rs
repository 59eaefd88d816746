//! Names for columns with a CAST. The planner calls `CAST(step AS DOUBLE)` as what it casts, so it refuses a query that has `step`
//! too, or that is sorted by it. Such a column is called here as it was written.

use std::ops::ControlFlow;

use datafusion::common::DataFusionError;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, Ident, Query, SelectItem, SetExpr, VisitMut, VisitorMut};

/// Whether `error` says that two columns have one name.
pub(super) fn are_missing(error: &DataFusionError) -> bool {
    error.strip_backtrace().contains("Projections require unique expression names")
}

/// Names the columns with a CAST that are called as another one, or as what their query is sorted by.
pub(super) fn give_names(statement: &mut Statement) {
    if let Statement::Statement(statement) = statement {
        let _ = statement.visit(&mut CastNames);
    }
}

struct CastNames;

impl VisitorMut for CastNames {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let is_sorted = query.order_by.is_some();
        let SetExpr::Select(select) = query.body.as_mut() else { return ControlFlow::Continue(()) };
        let uncast: Vec<Option<Expr>> = select.projection.iter().map(without_casts).collect();
        for (index, item) in select.projection.iter_mut().enumerate() {
            let SelectItem::UnnamedExpr(expr) = item else { continue };
            let is_twice = uncast.iter().filter(|other| **other == uncast[index]).count() > 1;
            if uncast[index].as_ref() != Some(expr) && (is_sorted || is_twice) {
                let alias = Ident::with_quote('"', expr.to_string());
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            }
        }
        ControlFlow::Continue(())
    }
}

/// A column without a name of its own, and without the casts in it.
fn without_casts(item: &SelectItem) -> Option<Expr> {
    let SelectItem::UnnamedExpr(expr) = item else { return None };
    let mut expr = expr.clone();
    let _ = expr.visit(&mut CastRemover);
    Some(expr)
}

struct CastRemover;

impl VisitorMut for CastRemover {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { expr: inner, .. } = expr {
            *expr = inner.as_ref().clone();
        }
        ControlFlow::Continue(())
    }
}
