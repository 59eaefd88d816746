//! The size of a statement, counted before it is planned: its names of WITH and of views count as all that is behind them.
//! [`super::text_complexity`] says why there are bounds.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, GroupByWithModifier, ObjectName, ObjectNamePart, Query, Select, SetExpr, Statement as Sql,
    TableFactor, Visit, Visitor,
};
use probe_common::error::{Error, Result};

use super::{read_only, views};

/// Tables, views and subqueries, where a name from WITH or of a view counts as all that is behind it.
pub(super) const MAX_RELATIONS: usize = 50;
/// Tables as they are written in the statement, used or not.
const MAX_WRITTEN_RELATIONS: usize = 4 * MAX_RELATIONS;
/// Expressions, counted as tables are.
pub(super) const MAX_EXPRESSIONS: usize = 50_000;
/// Queries within expressions of queries, names expanded: the optimizer goes through each of them twice, and so 2^n times.
pub(super) const MAX_SUBQUERIES: usize = 8;
/// Ways of grouping that GROUPING SETS, ROLLUP and CUBE come to.
pub(super) const MAX_GROUPINGS: usize = 64;

/// Refuses a statement whose size is over a bound. Names of WITH and of views count as all that is behind them, as often as they
/// are used.
pub(super) fn check(statement: &Statement) -> Result<()> {
    match statement {
        Statement::Explain(explain) => check(&explain.statement),
        Statement::Statement(sql) => measure(sql, &of_view)?.check(),
        _ => Ok(()),
    }
}

/// The size of a query.
#[derive(Debug, Default, Clone, Copy)]
struct StatementSize {
    relations: usize,
    expressions: usize,
    /// How deep queries are nested within expressions.
    subqueries: usize,
}

impl StatementSize {
    fn add(&mut self, other: Self) {
        self.relations = self.relations.saturating_add(other.relations);
        self.expressions = self.expressions.saturating_add(other.expressions);
        self.subqueries = self.subqueries.max(other.subqueries);
    }

    fn check(self) -> Result<()> {
        let hint = "a name from WITH counts as the query behind it each time it is used; ask in parts";
        if self.relations > MAX_RELATIONS {
            let relations = self.relations;
            return Err(Error::failed(format!("the query comes to {relations} tables; the limit is {MAX_RELATIONS}"))
                .hint(hint));
        }
        if self.subqueries > MAX_SUBQUERIES {
            let deep = self.subqueries;
            return Err(Error::failed(format!(
                "the query has queries within expressions {deep} deep; the limit is {MAX_SUBQUERIES}"
            ))
            .hint("join them: FROM a JOIN b ON … in place of (SELECT … FROM b WHERE …)"));
        }
        if self.expressions > MAX_EXPRESSIONS {
            let expressions = self.expressions;
            return Err(Error::failed(format!(
                "the query comes to {expressions} expressions; the limit is {MAX_EXPRESSIONS}"
            ))
            .hint(hint));
        }
        Ok(())
    }
}

fn measure(sql: &Sql, view: &dyn Fn(&str, &str) -> Option<StatementSize>) -> Result<StatementSize> {
    let mut measurer =
        StatementMeasurer { view, queries: vec![VisitedQuery::default()], written: 0, within: HashSet::new() };
    match sql.visit(&mut measurer) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(measurer.queries.first().map_or(StatementSize::default(), |whole| whole.size)),
    }
}

/// Visits a statement and adds up its size.
struct StatementMeasurer<'a> {
    view: &'a dyn Fn(&str, &str) -> Option<StatementSize>,
    /// The queries that are being visited, the innermost last.
    queries: Vec<VisitedQuery>,
    /// Relations that have been visited.
    written: usize,
    /// Queries within expressions, by their addresses.
    within: HashSet<*const Query>,
}

/// A query that is being visited.
#[derive(Default)]
struct VisitedQuery {
    size: StatementSize,
    /// The sizes of the queries of its WITH that have been visited, by name.
    named: HashMap<String, StatementSize>,
    /// The names of the queries of its WITH, by their addresses.
    names: HashMap<*const Query, String>,
}

impl StatementMeasurer<'_> {
    /// Counts a relation or clause as it is written.
    fn see(&mut self, size: StatementSize) -> ControlFlow<Error> {
        self.written += usize::from(size.relations > 0);
        if self.written > MAX_WRITTEN_RELATIONS {
            let text = format!("the query names more than {MAX_WRITTEN_RELATIONS} tables");
            return ControlFlow::Break(Error::failed(text).hint("ask in parts"));
        }
        self.add(size)
    }

    fn add(&mut self, size: StatementSize) -> ControlFlow<Error> {
        if let Some(query) = self.queries.last_mut() {
            query.size.add(size);
            if let Err(error) = query.size.check() {
                return ControlFlow::Break(error);
            }
        }
        ControlFlow::Continue(())
    }

    fn relation(&self, name: &ObjectName) -> StatementSize {
        let parts: Vec<&str> =
            name.0.iter().filter_map(ObjectNamePart::as_ident).map(|part| part.value.as_str()).collect();
        let found = match parts[..] {
            [name] => self.queries.iter().rev().find_map(|query| query.named.get(&name.to_lowercase()).copied()),
            [.., schema, name] => (self.view)(&schema.to_lowercase(), &name.to_lowercase()),
            [] => None,
        };
        let mut size = found.unwrap_or_default();
        size.add(StatementSize { relations: 1, ..StatementSize::default() });
        size
    }
}

impl Visitor for StatementMeasurer<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        let mut open = VisitedQuery::default();
        for named in query.with.iter().flat_map(|with| &with.cte_tables) {
            open.names.insert(&raw const *named.query, named.alias.name.value.to_lowercase());
        }
        self.queries.push(open);
        self.see(StatementSize { relations: values(&query.body), ..StatementSize::default() })
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        let mut size = self.queries.pop().map_or(StatementSize::default(), |query| query.size);
        size.subqueries += usize::from(self.within.contains(&(&raw const *query)));
        if let Some(outer) = self.queries.last_mut()
            && let Some(name) = outer.names.get(&(&raw const *query))
        {
            // A query of WITH counts where it is used.
            outer.named.insert(name.clone(), size);
            return ControlFlow::Continue(());
        }
        self.add(size)
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Error> {
        let (groupings, by) = match &select.group_by {
            GroupByExpr::Expressions(by, modifiers) => (groupings(by, modifiers), by.len()),
            GroupByExpr::All(_) => (1, 0),
        };
        if groupings > MAX_GROUPINGS {
            return ControlFlow::Break(
                Error::failed(format!(
                    "the query groups in more than {MAX_GROUPINGS} ways: that is what its CUBE, ROLLUP and GROUPING SETS \
                     come to"
                ))
                .hint("list the groups that you want: GROUPING SETS ((run), (run, rank))"),
            );
        }
        let relations = usize::from(select.from.is_empty());
        self.see(StatementSize { relations, expressions: groupings.saturating_mul(by), subqueries: 0 })
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Error> {
        let size = match factor {
            TableFactor::Table { name, .. } => self.relation(name),
            _ => StatementSize { relations: 1, ..StatementSize::default() },
        };
        self.see(size)
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Error> {
        if let Expr::Subquery(query) | Expr::InSubquery { subquery: query, .. } | Expr::Exists { subquery: query, .. } =
            expression
        {
            self.within.insert(&raw const **query);
        }
        self.add(StatementSize { expressions: 1, ..StatementSize::default() })
    }
}

/// Number of VALUES in a query's body, outside of its SELECTs.
fn values(body: &SetExpr) -> usize {
    match body {
        SetExpr::SetOperation { left, right, .. } => values(left) + values(right),
        SetExpr::Values(_) => 1,
        _ => 0,
    }
}

/// The ways of grouping that one GROUP BY comes to.
fn groupings(by: &[Expr], modifiers: &[GroupByWithModifier]) -> usize {
    let powers =
        |sets: usize| u32::try_from(sets).ok().and_then(|sets| 2_usize.checked_pow(sets)).unwrap_or(usize::MAX);
    let of = |expression: &Expr| match expression {
        Expr::Cube(sets) => powers(sets.len()),
        Expr::Rollup(sets) => sets.len() + 1,
        Expr::GroupingSets(sets) => sets.len(),
        _ => 1,
    };
    let written = by.iter().map(of).fold(1_usize, usize::saturating_mul);
    let modified = modifiers.iter().map(|modifier| match modifier {
        GroupByWithModifier::Rollup => by.len() + 1,
        GroupByWithModifier::Cube => powers(by.len()),
        _ => 1,
    });
    modified.fold(written, usize::saturating_mul)
}

/// The size of the view `schema.name`.
fn of_view(schema: &str, name: &str) -> Option<StatementSize> {
    static VIEWS: LazyLock<Vec<StatementSize>> = LazyLock::new(|| {
        let size = |view: &views::View| {
            let parsed = read_only::parse(view.sql());
            // Views are over tables. One that can't be read, which a test would see, is as large as can be.
            let Ok(Statement::Statement(sql)) = parsed else {
                return StatementSize { relations: usize::MAX, ..StatementSize::default() };
            };
            measure(&sql, &|_, _| None).unwrap_or(StatementSize { relations: usize::MAX, ..StatementSize::default() })
        };
        views::VIEWS.iter().map(size).collect()
    });
    let index = views::VIEWS.iter().position(|view| view.table.schema == schema && view.table.name == name)?;
    VIEWS.get(index).copied()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn size(sql: &str) -> Result<StatementSize> {
        let Statement::Statement(statement) = read_only::parse(sql)? else { panic!("{sql}") };
        measure(&statement, &of_view)
    }

    #[test]
    fn a_name_counts_as_what_it_stands_for() {
        for (sql, relations) in [
            ("SELECT 1", 1),
            ("SELECT * FROM a, b JOIN c ON true", 3),
            ("SELECT 1 UNION ALL SELECT 2 UNION SELECT 3", 3),
            ("SELECT (SELECT 1), x IN (SELECT y FROM t)", 3),
            ("WITH a AS (SELECT * FROM t) SELECT * FROM A x, a y", 2 + 2),
            // The inner a hides the outer one.
            ("WITH a AS (SELECT * FROM t, t, t) SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a)", 1 + 2),
            ("VALUES (1), (2) UNION VALUES (3)", 2),
        ] {
            assert_eq!(size(sql).unwrap().relations, relations, "{sql}");
        }
        let view = size("SELECT * FROM python.rank_balance").unwrap().relations;
        assert!(view > 4, "{view}");
        assert_eq!(size("SELECT * FROM b.python.rank_balance x, python.rank_balance y").unwrap().relations, 2 * view);
    }

    #[test]
    fn doublings_are_found_before_they_are_made() {
        let mut sql = "WITH a0 AS (SELECT 1 AS x)".to_owned();
        for level in 1..60 {
            sql += &format!(", a{level} AS (SELECT l.x FROM a{0} l JOIN a{0} r ON l.x = r.x)", level - 1);
        }
        let error = size(&format!("{sql} SELECT * FROM a59")).unwrap_err();
        assert!(error.to_string().contains("tables; the limit is 50"), "{error}");
        let chained = (1..20).fold("WITH a0 AS (SELECT 1 AS x)".to_owned(), |sql, level| {
            sql + &format!(", a{level} AS (SELECT (SELECT x FROM a{}) AS x)", level - 1)
        });
        let error = size(&format!("{chained} SELECT * FROM a19")).unwrap_err();
        assert!(error.to_string().contains("queries within expressions 9 deep"), "{error}");
        for by in ["CUBE (a, b, c, d, e, f, g)", "CUBE (a, b, c), ROLLUP (d, e, f, g, h, i, j, k)"] {
            let error = size(&format!("SELECT 1 FROM t GROUP BY {by}")).unwrap_err();
            assert!(error.to_string().contains("groups in more than 64 ways"), "{error}");
        }
        assert!(size("SELECT 1 FROM t GROUP BY CUBE (a, b, c, d, e, f)").is_ok());
    }
}
