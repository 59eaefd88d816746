//! Counters and derived values of an agent's state.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use probe_common::clock;

use super::batches::BatchSource;
use super::{AgentState, MAX_ENTRIES, RowLoss};

impl AgentState {
    pub(super) fn finish(&mut self, from: &BatchSource<'_>) {
        self.done_seq = from.seq;
        self.last_seen = clock::unix_ns();
        self.recorded(from.table, from.recorded);
    }

    pub(super) fn count_stored(&mut self, table: &str, rows: u64) {
        if let Some(stored) = self.stored.get_mut(table) {
            *stored += rows;
        } else if self.stored.len() < MAX_ENTRIES {
            self.stored.insert(table.to_owned(), rows);
        }
    }

    /// Rows of a table that the agent says it recorded, and that have neither come nor been counted as lost: they are on their
    /// way, or gone with the process.
    pub fn missing(&self, table: &str) -> u64 {
        let there = self.lost_there.iter().filter(|((of, _), _)| of == table).map(|(_, loss)| loss.rows);
        let here = self.lost_here.iter().filter(|((of, _), _)| of == table).map(|(_, loss)| loss.rows);
        let lost: u64 = there.chain(here).sum();
        let stored = self.stored.get(table).copied().unwrap_or(0);
        self.recorded.get(table).map_or(0, |recorded| recorded.saturating_sub(stored + lost))
    }

    /// Takes the number of rows of a table that the agent has recorded so far.
    pub(super) fn recorded(&mut self, table: &str, rows: u64) {
        if let Some(recorded) = self.recorded.get_mut(table) {
            *recorded = rows.max(*recorded);
        } else if self.recorded.len() < MAX_ENTRIES {
            self.recorded.insert(table.to_owned(), rows);
        }
    }

    /// Counts rows that the collector lost.
    pub fn count_loss(&mut self, table: &str, reason: &'static str, rows: u64) {
        let key = (table.to_owned(), Cow::Borrowed(reason));
        if self.lost_here.len() >= MAX_ENTRIES && !self.lost_here.contains_key(&key) {
            return;
        }
        let loss = self.lost_here.entry(key).or_default();
        *loss = RowLoss { rows: loss.rows.saturating_add(rows), last: clock::unix_ns() };
    }

    /// Keeps what was wrong with the agent's frames. An empty text changes nothing.
    pub fn note_problem(&mut self, problem: String) {
        if !problem.is_empty() {
            self.problem_here = problem;
        }
    }

    /// An estimate of the step that the process is at.
    pub fn estimated_step(&self, now: Instant) -> f64 {
        // Reports come every half second, so this is rarely more. The bound keeps the estimate of a training that stalls from
        // running away.
        let age = now.saturating_duration_since(self.reported).min(Duration::from_secs(2));
        self.step as f64 + self.steps_per_second * age.as_secs_f64()
    }

    /// The usual duration of a step (s); None where it is not known. Where all steps came with the first report, the agent knows it.
    pub fn usual_step(&self) -> Option<f64> {
        let reported = || self.cost.map(|cost| cost.step_seconds).filter(|seconds| *seconds > 0.0);
        self.pace.usual().or_else(reported)
    }

    /// What went wrong in the agent and in the collector; None where nothing did.
    pub fn problems(&self) -> Option<String> {
        let both = [&self.problem, &self.problem_here];
        let texts: Vec<&str> = both.into_iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}
