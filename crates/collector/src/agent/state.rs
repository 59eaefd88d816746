//! What an agent's state counts, and what it says.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use probe_common::clock;

use super::{AgentState, BatchSource, Loss, MAX_ENTRIES};

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

    /// Rows of a table that it says it recorded, and that have neither come nor are they counted as lost: on their way,
    /// or gone with the process.
    pub fn missing(&self, table: &str) -> u64 {
        let there = self.lost_there.iter().filter(|((of, _), _)| of == table).map(|(_, loss)| loss.rows);
        let here = self.lost_here.iter().filter(|((of, _), _)| of == table).map(|(_, loss)| loss.rows);
        let lost: u64 = there.chain(here).sum();
        let stored = self.stored.get(table).copied().unwrap_or(0);
        self.recorded.get(table).map_or(0, |recorded| recorded.saturating_sub(stored + lost))
    }

    /// The agent has recorded so many rows of a table so far.
    pub(super) fn recorded(&mut self, table: &str, rows: u64) {
        if let Some(recorded) = self.recorded.get_mut(table) {
            *recorded = rows.max(*recorded);
        } else if self.recorded.len() < MAX_ENTRIES {
            self.recorded.insert(table.to_owned(), rows);
        }
    }

    /// Counts rows that were lost here.
    pub fn count_loss(&mut self, table: &str, reason: &'static str, rows: u64) {
        let key = (table.to_owned(), Cow::Borrowed(reason));
        if self.lost_here.len() >= MAX_ENTRIES && !self.lost_here.contains_key(&key) {
            return;
        }
        let loss = self.lost_here.entry(key).or_default();
        *loss = Loss { rows: loss.rows.saturating_add(rows), last: clock::unix_ns() };
    }

    /// Keeps what was wrong with what it sent; nothing, and what was wrong before stays.
    pub fn remark(&mut self, problem: String) {
        if !problem.is_empty() {
            self.problem_here = problem;
        }
    }

    /// Where its step count should be by now.
    pub fn estimated_step(&self, now: Instant) -> f64 {
        // A report is at most a little older than the half second between two of them; a training that stalls since
        // must not make the estimate run away.
        let age = now.saturating_duration_since(self.reported).min(Duration::from_secs(2));
        self.step as f64 + self.steps_per_second * age.as_secs_f64()
    }

    /// What went wrong there and here; None when nothing did.
    pub fn problems(&self) -> Option<String> {
        let both = [&self.problem, &self.problem_here];
        let said: Vec<&str> = both.into_iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }
}
