//! Names of columns that a query does not name itself, as a person would write them: `max(step)`, and not
//! `max(python.steps.step)`; `duration * 1000`, and not `python.steps.duration * Int64(1000)`.

use std::collections::{BTreeSet, HashSet};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// The literals that are named by their types, whose values say the same without it.
const TYPES: [&str; 6] = ["Int64", "UInt64", "Int32", "Float64", "Boolean", "Utf8"];

/// The names of the columns of a plan. Two columns that would be called the same have the planner's names.
pub(super) fn names_of_plan(plan: &LogicalPlan) -> Vec<String> {
    let tables = tables(plan);
    let planned: Vec<&String> = plan.schema().fields().iter().map(|field| field.name()).collect();
    let expressions = expressions(plan);
    let is_given = |column: usize| matches!(expressions.get(column), Some(Expr::Alias(_)));
    let name = |(column, name): (usize, &&String)| {
        if is_given(column) { (*name).clone() } else { plain(name, &tables) }
    };
    let plain: Vec<String> = planned.iter().enumerate().map(name).collect();
    let mut seen = HashSet::new();
    let twice: HashSet<&String> = plain.iter().filter(|name| !seen.insert(*name)).collect();
    plain
        .iter()
        .zip(planned)
        .map(|(plain, planned)| if twice.contains(plain) { planned } else { plain }.clone())
        .collect()
}

/// The expressions of the columns of a plan, where it has some.
fn expressions(plan: &LogicalPlan) -> &[Expr] {
    match plan {
        LogicalPlan::Projection(projection) => &projection.expr,
        LogicalPlan::Sort(sort) => expressions(&sort.input),
        LogicalPlan::Limit(limit) => expressions(&limit.input),
        _ => &[],
    }
}

/// The names of all tables in a plan, with the dot after them; longer ones first, since one may be the beginning of another.
fn tables(plan: &LogicalPlan) -> Vec<String> {
    let mut tables = BTreeSet::new();
    // The closure does not fail.
    let _ = plan.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::TableScan(scan) => _ = tables.insert(format!("{}.", scan.table_name)),
            LogicalPlan::SubqueryAlias(alias) => _ = tables.insert(format!("{}.", alias.alias)),
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    });
    let mut tables: Vec<String> = tables.into_iter().collect();
    tables.sort_by_key(|table| std::cmp::Reverse(table.len()));
    tables
}

fn plain(name: &str, tables: &[String]) -> String {
    // The name of a column.
    if !name.contains(['(', ' ']) {
        return name.to_owned();
    }
    let mut plain = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(next) = rest.chars().next() {
        // Where a word begins.
        if !plain.ends_with(|last: char| last.is_alphanumeric() || "_.".contains(last)) {
            if let Some(column) = tables.iter().find_map(|table| rest.strip_prefix(table.as_str())) {
                rest = column;
                continue;
            }
            if let Some((value, after)) = literal(rest) {
                plain.push_str(&value);
                rest = after;
                continue;
            }
        }
        plain.push(next);
        rest = &rest[next.len_utf8()..];
    }
    plain
}

/// The value of a literal that `name` begins with, as it is written in a query, and what comes after it.
fn literal(name: &str) -> Option<(String, &str)> {
    let value = TYPES.iter().find_map(|kind| name.strip_prefix(kind)?.strip_prefix('('))?;
    match value.strip_prefix('"') {
        Some(text) => text.split_once("\")").map(|(text, after)| (format!("'{text}'"), after)),
        None => value.split_once(')').map(|(number, after)| (number.to_owned(), after)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_a_person_would_write_them() {
        let tables = ["python.steps.".to_owned(), "steps.".to_owned(), "s.".to_owned()];
        for (planned, expected) in [
            ("max(python.steps.step)", "max(step)"),
            ("sum(s.duration) / count(Int64(1))", "sum(duration) / count(1)"),
            ("python.steps.duration * Float64(0.5)", "duration * 0.5"),
            (
                "first_value(steps.module) ORDER BY [s.step ASC NULLS LAST]",
                "first_value(module) ORDER BY [step ASC NULLS LAST]",
            ),
            ("strpos(python.steps.kind,Utf8(\"s.x\"))", "strpos(kind,'s.x')"),
            ("max(items.step)", "max(items.step)"),
            ("my name s.x", "my name x"),
            ("python.steps.step", "python.steps.step"),
            ("Int64(NULL)", "NULL"),
            ("Utf8(\"é", "Utf8(\"é"),
        ] {
            assert_eq!(plain(planned, &tables), expected);
        }
    }
}
