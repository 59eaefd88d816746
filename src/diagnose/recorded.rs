//! How many values of a column were recorded, which says whether a rule can decide.

use std::collections::{BTreeMap, BTreeSet};

use probe_client::Client;
use probe_common::error::{ErrorKind as Failure, Result};

use super::rows::{AnswerRows, ask};
use super::rule::{Rule, RuleKind};
use super::steps::DiagnosedSteps;

/// A column that a rule needs (TABLE.COLUMN), and the fewest values that one process must have.
struct NeededColumn<'a> {
    table: &'a str,
    column: &'a str,
    least: i64,
}

impl<'a> NeededColumn<'a> {
    fn parse(need: &'a str) -> Self {
        let (need, least) = need.split_once(" >= ").unwrap_or((need, "1"));
        let (table, column) = need.rsplit_once('.').unwrap_or((need, "*"));
        Self { table, column, least: least.parse().unwrap_or(1) }
    }
}

/// The query for the number of rows of a table of captures, of which rules look at one of each process.
fn of_captures(table: &str) -> Option<&'static str> {
    match table {
        "gpu.kernels" => Some("SELECT MAX(kernels) AS c0 FROM $captures AS c"),
        "python.step_categories" => Some("SELECT MAX(steps) AS c0 FROM $captures AS c"),
        _ => None,
    }
}

/// The rows of a table that count.
fn condition(table: &str) -> &'static str {
    match table {
        // Conditions are recorded when training begins, and then when one changes.
        "python.environment" => "pid IN ($pids)",
        // The rows of a node's collector, which has no steps.
        "gpu.metrics" => "true",
        _ => "$window",
    }
}

/// The largest share of a table's rows that may be lost without a rule being left undecided for it.
const MAX_LOST: f64 = 0.01;

/// What was recorded of the columns that rules need.
pub(super) struct RecordedCounts {
    /// By table and column, the number of values of the process that has most.
    counts: BTreeMap<(String, String), i64>,
    /// By table, the largest share of its rows that a process lost, where that is more than [`MAX_LOST`].
    lost: BTreeMap<String, f64>,
}

impl RecordedCounts {
    /// Counts what the rules need, with one query for each table.
    ///
    /// # Errors
    /// The run has gone.
    pub(super) async fn read(client: &mut Client, steps: &DiagnosedSteps, rules: &[Rule]) -> Result<Self> {
        let mut columns = BTreeMap::<&str, BTreeSet<&str>>::new();
        for need in rules.iter().flat_map(|rule| &rule.needs).map(|need| NeededColumn::parse(need)) {
            columns.entry(need.table).or_default().insert(need.column);
        }
        let mut counts = BTreeMap::new();
        for (table, columns) in columns {
            let columns: Vec<&str> = columns.into_iter().collect();
            let mut found = count(client, steps, table, &columns).await?;
            if found.is_none() && columns.len() > 1 {
                // An older run lacks some of the columns, and a user's rule may name some that never were.
                let mut each = Vec::new();
                for column in &columns {
                    each.extend(count(client, steps, table, &[*column]).await?.unwrap_or_else(|| vec![0]));
                }
                found = Some(each);
            }
            let found = found.unwrap_or_else(|| vec![0; columns.len()]);
            counts.extend(columns.iter().zip(found).map(|(column, count)| ((table.into(), (*column).into()), count)));
        }
        Ok(Self { counts, lost: lost(client, steps).await? })
    }

    /// Why the rule can't decide: the first of its needs that is not met. None if all needs are met.
    pub(super) fn lack(&self, rule: &Rule) -> Option<String> {
        let of_steps = (rule.kind == RuleKind::Time).then_some("python.steps");
        let mut tables = rule.needs.iter().map(|need| NeededColumn::parse(need).table).chain(of_steps);
        if let Some((table, share)) = tables.find_map(|table| self.lost.get_key_value(table)) {
            return Some(format!("{:.1} % of the rows of {table} are lost (probe.drops says why)", share * 100.0));
        }
        rule.needs.iter().find_map(|text| {
            let NeededColumn { table, column, least } = NeededColumn::parse(text);
            let count = self.counts.get(&(table.to_owned(), column.to_owned())).copied().unwrap_or(0);
            let of = match condition(table) {
                _ if of_captures(table).is_some() => "in a capture of these steps",
                "$window" => "in these steps",
                _ => "of these processes",
            };
            match count {
                0 => Some(format!("{table}.{column} is not recorded {of}")),
                count if count < least => {
                    Some(format!("{count} rows of {table} {of} are too few: the rule needs {least}"))
                }
                _ => None,
            }
        })
    }
}

/// The counts of columns of one table; None where the query failed.
async fn count(client: &mut Client, steps: &DiagnosedSteps, table: &str, columns: &[&str]) -> Result<Option<Vec<i64>>> {
    let list = |each: &dyn Fn(usize, &str) -> String| {
        columns.iter().enumerate().map(|(index, column)| each(index, column)).collect::<Vec<_>>().join(", ")
    };
    let most_of_a_process = || {
        format!(
            "SELECT {} FROM (SELECT {} FROM {table} WHERE {} GROUP BY pid)",
            list(&|index, _| format!("MAX(c{index}) AS c{index}")),
            list(&|index, column| format!("COUNT({column}) AS c{index}")),
            condition(table)
        )
    };
    let sql = steps.fill(&of_captures(table).map_or_else(most_of_a_process, str::to_owned));
    let count =
        |rows: AnswerRows| (0..columns.len()).map(|index| rows.int(&format!("c{index}"), 0).unwrap_or(0)).collect();
    Ok(ask_if_possible(client, &sql).await?.map(count))
}

/// The answer of a query; None where it failed, but for a run that has gone.
async fn ask_if_possible(client: &mut Client, sql: &str) -> Result<Option<AnswerRows>> {
    match ask(client, sql).await {
        Ok(rows) => Ok(Some(rows)),
        Err(error) if error.kind() == Failure::Unreachable => Err(error),
        Err(_) => Ok(None),
    }
}

/// By table, the largest share of its rows that a process lost, where that is more than [`MAX_LOST`].
async fn lost(client: &mut Client, steps: &DiagnosedSteps) -> Result<BTreeMap<String, f64>> {
    let some = steps.fill("SELECT COUNT(*) AS count FROM probe.drops WHERE pid IN ($pids) AND reason <> 'evicted'");
    let shares = steps.fill("SELECT table_name, MAX(share) AS share FROM $rows_lost GROUP BY table_name");
    let count = ask_if_possible(client, &some).await?.and_then(|rows| rows.int("count", 0));
    if count.is_none_or(|count| count == 0) {
        return Ok(BTreeMap::new());
    }
    let rows = ask_if_possible(client, &shares).await?.unwrap_or_default();
    let shares = (0..rows.count).filter_map(|row| rows.text("table_name", row).zip(rows.number("share", row)));
    Ok(shares.filter(|(_, share)| *share > MAX_LOST).collect())
}
