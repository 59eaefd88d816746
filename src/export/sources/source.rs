//! [`DrawnTable`]: a table that is drawn, and the SQL for its rows.

use std::io::Result;

use crate::export::choice::ExportChoice;
use crate::export::drawing::TimelineDrawing;
use crate::export::row::{ExportColumn, ExportRow};

/// What the rows of a table belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOwner {
    /// An agent's process.
    Process,
    /// A capture.
    Capture,
    /// A machine.
    Host,
    /// A process or the whole run.
    Run,
}

/// How rows of chosen steps are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepSelection {
    /// Rows are found by their step.
    Step,
    /// Rows are found by their step, and those without one by their time.
    StepOrTime,
    /// Rows are found by their time.
    Time,
}

/// A table that is drawn.
pub(crate) struct DrawnTable {
    pub table: &'static str,
    pub whose: RowOwner,
    pub within: StepSelection,
    /// The duration in seconds, in SQL.
    pub duration: &'static str,
    /// The order of rows that begin and end together, in SQL.
    pub order: &'static str,
    pub columns: &'static [ExportColumn],
    pub draw: fn(&mut TimelineDrawing<'_>, &ExportRow<'_>, &[ExportColumn]) -> Result<()>,
}

impl DrawnTable {
    /// The condition for the rows of the choice, in SQL; None if the choice has no rows of this table.
    pub(crate) fn condition(&self, choice: &ExportChoice) -> Option<String> {
        let whose = match self.whose {
            RowOwner::Process => choice.processes_condition.clone(),
            RowOwner::Capture => choice.captures_condition.clone(),
            RowOwner::Run if choice.per_rank => choice.processes_condition.clone(),
            RowOwner::Run => format!("({} OR pid IS NULL)", choice.processes_condition),
            // A file of one process has no rows of its machine.
            RowOwner::Host if choice.per_rank => return None,
            RowOwner::Host => {
                let mut hosts: Vec<&str> = choice.processes.iter().map(|process| process.host.as_str()).collect();
                hosts.sort_unstable();
                hosts.dedup();
                let quoted: Vec<String> = hosts.iter().map(|host| format!("'{}'", host.replace('\'', "''"))).collect();
                format!("host IN ({})", quoted.join(", "))
            }
        };
        if choice.steps.is_none() {
            return Some(whose);
        }
        let (own, other) = match self.whose {
            RowOwner::Capture => (choice.captures_span, choice.agents_span),
            _ => (choice.agents_span, choice.captures_span),
        };
        let by_time = own.or(other).map(|(from, to)| span(from, to.saturating_add(1)));
        let by_step = choice.steps_condition.as_str();
        Some(match (self.within, by_time) {
            (StepSelection::Step, _) | (StepSelection::StepOrTime, None) => format!("{whose} AND {by_step}"),
            (StepSelection::StepOrTime, Some(by_time)) => {
                format!("{whose} AND ({by_step} OR step IS NULL AND {by_time})")
            }
            (StepSelection::Time, Some(by_time)) => format!("{whose} AND {by_time}"),
            (StepSelection::Time, None) => return None,
        })
    }

    /// `condition`, between two times.
    pub(crate) fn within(&self, condition: &str, from: i64, before: i64) -> String {
        format!("{condition} AND {}", span(from, before))
    }

    /// The query for the rows between two times.
    pub(crate) fn select(&self, condition: &str, from: i64, before: i64) -> String {
        let capture = if self.whose == RowOwner::Capture { "capture" } else { "NULL" };
        let columns: Vec<&str> = self.columns.iter().map(|column| column.sql).collect();
        // Columns of one name may be asked for twice.
        let columns: Vec<String> =
            columns.iter().enumerate().map(|(index, sql)| format!(", {sql} AS c{index}")).collect();
        format!(
            "SELECT host, pid, {capture} AS capture, CAST(ts AS BIGINT) AS ts, CAST({} AS DOUBLE) AS duration{} FROM {} WHERE {} \
             ORDER BY ts, duration DESC NULLS LAST{}, host, pid, capture",
            self.duration,
            columns.concat(),
            self.table,
            self.within(condition, from, before),
            self.order
        )
    }
}

fn span(from: i64, before: i64) -> String {
    format!("ts >= to_timestamp_nanos({from}) AND ts < to_timestamp_nanos({before})")
}
