//! Refuses clauses that parse but that DataFusion's planner ignores or misreads: the answer would be that of another query.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, GroupByWithModifier, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr,
    SetOperator, SetQuantifier, Statement, TableFactor, Visit, Visitor, WildcardAdditionalOptions,
};
use probe_common::error::{Error, Result};

/// What is refused, and what to write in its place.
type RefusedClause = (&'static str, &'static str);

/// Refuses a statement with a part that would be ignored or misunderstood.
pub(super) fn check(statement: &Statement) -> Result<()> {
    match statement.visit(&mut IgnoredClauseFinder) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break((what, instead)) => Err(Error::failed(format!("{what} is not supported")).hint(instead)),
    }
}

struct IgnoredClauseFinder;

impl Visitor for IgnoredClauseFinder {
    type Break = RefusedClause;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<RefusedClause> {
        refuse(query.settings.is_some(), "SETTINGS", "probe query --timeout, --max-rows and --max-bytes set limits")?;
        let format = "probe query --format says how answers are printed";
        refuse(query.format_clause.is_some(), "FORMAT", format)?;
        refuse(query.for_clause.is_some(), "FOR XML or FOR JSON", format)?;
        of_all_rows(&query.body)
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<RefusedClause> {
        match expression {
            Expr::RLike { .. } => refuse(true, "RLIKE or REGEXP", "write text ~ 'pattern'"),
            // It would be a regular expression in which % and _ stand for themselves.
            Expr::SimilarTo { .. } => refuse(true, "SIMILAR TO", "write LIKE, or text ~ '^pattern$'"),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<RefusedClause> {
        refuse(select.prewhere.is_some(), "PREWHERE", "write WHERE")?;
        refuse(!select.connect_by.is_empty(), "CONNECT BY", "write WITH RECURSIVE")?;
        refuse(select.exclude.is_some(), "EXCLUDE behind other columns", "write it behind the *: * EXCLUDE (column)")?;
        match &select.group_by {
            GroupByExpr::All(modifiers) | GroupByExpr::Expressions(_, modifiers) => {
                modifiers.iter().try_for_each(|modifier| match modifier {
                    GroupByWithModifier::Rollup => refuse(true, "WITH ROLLUP", "write GROUP BY ROLLUP (a, b)"),
                    GroupByWithModifier::Cube => refuse(true, "WITH CUBE", "write GROUP BY CUBE (a, b)"),
                    GroupByWithModifier::Totals => refuse(true, "WITH TOTALS", "write GROUP BY ROLLUP (a, b)"),
                    GroupByWithModifier::GroupingSets(_) => refuse(
                        true,
                        "GROUPING SETS behind GROUP BY's columns",
                        "write GROUP BY GROUPING SETS ((a), (b))",
                    ),
                })?;
            }
        }
        select.projection.iter().try_for_each(|item| match item {
            SelectItem::Wildcard(options) => wildcard(options),
            SelectItem::QualifiedWildcard(kind, options) => {
                let of_value = matches!(kind, SelectItemQualifiedWildcardKind::Expr(_));
                refuse(of_value, "* of a value", "write value['field'] for each of its fields")?;
                wildcard(options)
            }
            _ => ControlFlow::Continue(()),
        })
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<RefusedClause> {
        let number_rows = "number the rows: row_number() OVER ()";
        match table {
            TableFactor::Table { sample, with_ordinality, partitions, version, json_path, .. } => {
                sampled(sample.is_some())?;
                refuse(*with_ordinality, "WITH ORDINALITY", number_rows)?;
                refuse(!partitions.is_empty(), "PARTITION behind a table", "write WHERE")?;
                refuse(version.is_some(), "a version of a table", "write WHERE ts < TIMESTAMP '…'")?;
                refuse(json_path.is_some(), "a path behind a table", "write it behind a column")
            }
            TableFactor::Derived { sample, .. } => sampled(sample.is_some()),
            TableFactor::Function { with_ordinality, .. } | TableFactor::UNNEST { with_ordinality, .. } => {
                refuse(*with_ordinality, "WITH ORDINALITY", number_rows)
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Refuses set operations that count how often a row is there: each row of the left side would be kept or left out.
fn of_all_rows(body: &SetExpr) -> ControlFlow<RefusedClause> {
    let SetExpr::SetOperation { op, set_quantifier, left, right } = body else { return ControlFlow::Continue(()) };
    if matches!(set_quantifier, SetQuantifier::All) {
        let number =
            "it is supported without ALL; to tell equal rows apart, number them: row_number() OVER (PARTITION BY …)";
        refuse(matches!(op, SetOperator::Intersect), "INTERSECT ALL", number)?;
        refuse(matches!(op, SetOperator::Except | SetOperator::Minus), "EXCEPT ALL", number)?;
    }
    of_all_rows(left)?;
    of_all_rows(right)
}

fn sampled(is_there: bool) -> ControlFlow<RefusedClause> {
    refuse(is_there, "TABLESAMPLE", "WHERE random() < 0.1 keeps about a tenth of the rows")
}

fn wildcard(options: &WildcardAdditionalOptions) -> ControlFlow<RefusedClause> {
    refuse(options.opt_ilike.is_some(), "* ILIKE", "name the columns; DESCRIBE TABLE lists them")?;
    refuse(options.opt_alias.is_some(), "a name for *", "rename columns one by one: column AS name")
}

fn refuse(is_there: bool, what: &'static str, instead: &'static str) -> ControlFlow<RefusedClause> {
    if is_there { ControlFlow::Break((what, instead)) } else { ControlFlow::Continue(()) }
}
