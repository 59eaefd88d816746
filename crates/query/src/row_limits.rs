//! `FETCH FIRST n ROWS ONLY` and `SELECT TOP n` mean `LIMIT n`, which is what DataFusion plans.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Fetch, LimitClause, Query, SetExpr, Statement as Sql, Top, TopQuantity, Value, VisitMut, VisitorMut,
};

/// Writes them as LIMIT. Those with ties or percent stay, and DataFusion refuses them.
pub(super) fn as_limits(sql: &mut Sql) {
    let _ = sql.visit(&mut RowLimits);
}

struct RowLimits;

impl VisitorMut for RowLimits {
    type Break = Infallible;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Infallible> {
        let offset = match &query.limit_clause {
            None => None,
            Some(LimitClause::LimitOffset { limit: None, offset, limit_by }) if limit_by.is_empty() => offset.clone(),
            // It would be limited twice.
            Some(_) => return ControlFlow::Continue(()),
        };
        let limit = fetched(query).or_else(|| top(query));
        if limit.is_some() {
            query.limit_clause = Some(LimitClause::LimitOffset { limit, offset, limit_by: Vec::new() });
        }
        ControlFlow::Continue(())
    }
}

/// The number of rows of a FETCH, which is taken out of the query.
fn fetched(query: &mut Query) -> Option<Expr> {
    let Fetch { with_ties: false, percent: false, .. } = query.fetch.as_ref()? else { return None };
    let Fetch { quantity, .. } = query.fetch.take()?;
    Some(quantity.unwrap_or_else(|| number(1)))
}

/// The number of rows of a TOP, which is taken out of the query.
fn top(query: &mut Query) -> Option<Expr> {
    let SetExpr::Select(select) = query.body.as_mut() else { return None };
    let Top { with_ties: false, percent: false, quantity: Some(_) } = select.top.as_ref()? else { return None };
    match select.top.take()?.quantity? {
        TopQuantity::Expr(rows) => Some(rows),
        TopQuantity::Constant(rows) => Some(number(rows)),
    }
}

fn number(rows: u64) -> Expr {
    Expr::value(Value::Number(rows.to_string(), false))
}
