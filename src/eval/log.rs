//! `probe.evals`: who asked for what, and what became of it. Bounded: the oldest rows go first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Table, Time};
use probe_proto::tables::evals;
use probe_proto::v1::{self, At, EvalCall, Outcome, record};

use super::{LONGEST_CODE, LONGEST_SESSION_NAME};
use crate::collector::agent::cut;
use crate::collector::clock;
use crate::journal::Journal;
use crate::query::{SystemRows, SystemTable};
use crate::server::audit::hash;
use crate::server::peer::Asker;

/// Rows that are kept.
const MOST_ROWS: usize = 10_000;
/// Bytes of their text that are kept.
const MOST_BYTES: usize = 16 << 20;

/// A row of `probe.evals`.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    id: i64,
    ts: i64,
    asked_by: Asker,
    code: String,
    hash: String,
    session: Option<String>,
    at: At,
    pub(crate) placed: Option<At>,
    pub(crate) step: Option<i64>,
    pub(crate) ranks: Option<String>,
    outcome: Option<Outcome>,
    pub(crate) duration: Option<f64>,
    pub(crate) training_waited: Option<f64>,
    pub(crate) output_bytes: u64,
    pub(crate) error: Option<String>,
}

impl Record {
    fn to_message(&self) -> v1::Eval {
        v1::Eval {
            id: self.id,
            ts: self.ts,
            asked_by: self.asked_by.who.clone(),
            peer: self.asked_by.peer.clone(),
            hash: self.hash.clone(),
            session: self.session.clone(),
            code: self.code.clone(),
            at: self.at.into(),
            placed: self.placed.map(Into::into),
            step: self.step,
            ranks: self.ranks.clone(),
            outcome: self.outcome.map(Into::into),
            duration: self.duration,
            training_waited: self.training_waited,
            output_bytes: self.output_bytes,
            error: self.error.clone(),
        }
    }

    fn of_message(eval: v1::Eval) -> Self {
        let ended = eval.outcome.is_some();
        Self {
            at: eval.at(),
            placed: eval.placed.map(|_| eval.placed()),
            outcome: Some(if ended { eval.outcome() } else { Outcome::Cancelled }),
            error: if ended { eval.error } else { Some("the collector died".into()) },
            id: eval.id,
            ts: eval.ts,
            asked_by: Asker { who: eval.asked_by, peer: eval.peer },
            code: eval.code,
            hash: eval.hash,
            session: eval.session,
            step: eval.step,
            ranks: eval.ranks,
            duration: eval.duration,
            training_waited: eval.training_waited,
            output_bytes: eval.output_bytes,
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Log {
    records: Mutex<Records>,
    /// Where they are written down, for whoever goes on after this collector.
    journal: OnceLock<Arc<Journal>>,
}

#[derive(Debug, Default)]
struct Records {
    rows: VecDeque<Record>,
    bytes: usize,
    newest: i64,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the log of the collector before had. What was under way then has ended with it.
    pub(crate) fn restore<'a>(evals: impl Iterator<Item = &'a v1::Eval>) -> Self {
        let log = Self::default();
        for eval in evals {
            let mut records = log.lock();
            let record = Record::of_message(eval.clone());
            records.newest = records.newest.max(record.id);
            records.bytes += record.code.len();
            records.rows.push_back(record);
            records.bound();
        }
        log
    }

    /// Writes down what is asked from now on.
    pub(crate) fn keep(&self, journal: Arc<Journal>) {
        // A log has one journal: a second one is the first.
        let _ = self.journal.set(journal);
    }

    fn write_down(&self, record: &Record) {
        if let Some(journal) = self.journal.get() {
            journal.record(record::Record::Eval(record.to_message()));
        }
    }

    /// A snippet was asked for.
    pub(crate) fn begin(self: &Arc<Self>, asked_by: &Asker, call: &EvalCall) -> Entry {
        let mut records = self.lock();
        records.newest += 1;
        let record = Record::new(records.newest, asked_by, call);
        records.bytes += record.code.len();
        records.rows.push_back(record.clone());
        records.bound();
        drop(records);
        self.write_down(&record);
        Entry { log: Arc::clone(self), record, listed: true }
    }

    /// Something was asked for that is no snippet of anybody's and has no row.
    pub(crate) fn unlisted(self: &Arc<Self>, asked_by: &Asker, call: &EvalCall) -> Entry {
        Entry { log: Arc::clone(self), record: Record::new(0, asked_by, call), listed: false }
    }
}

impl Record {
    fn new(id: i64, asked_by: &Asker, call: &EvalCall) -> Self {
        Self {
            id,
            ts: clock::unix_ns(),
            asked_by: asked_by.clone(),
            code: cut(call.code.clone(), LONGEST_CODE),
            hash: hash(&call.code),
            session: Some(cut(call.session.clone(), LONGEST_SESSION_NAME)).filter(|name| !name.is_empty()),
            at: call.at(),
            placed: None,
            step: None,
            ranks: None,
            outcome: None,
            duration: None,
            training_waited: None,
            output_bytes: 0,
            error: None,
        }
    }
}

impl Records {
    fn bound(&mut self) {
        while self.rows.len() > MOST_ROWS || (self.bytes > MOST_BYTES && self.rows.len() > 1) {
            let Some(gone) = self.rows.pop_front() else { return };
            self.bytes -= gone.code.len();
        }
    }

    fn replace(&mut self, record: &Record) {
        // Rows are in the order of their numbers, and only the oldest go.
        let Some(first) = self.rows.front().map(|row| row.id) else { return };
        let place = usize::try_from(record.id - first).ok();
        if let Some(row) = place.and_then(|place| self.rows.get_mut(place)) {
            *row = record.clone();
        }
    }
}

/// The row of a snippet that is under way. Dropped before [`Entry::finish`], the snippet was cancelled.
#[derive(Debug)]
pub(crate) struct Entry {
    log: Arc<Log>,
    pub(crate) record: Record,
    listed: bool,
}

impl Entry {
    /// Shows what has changed of the record.
    pub(crate) fn publish(&self) {
        if self.listed {
            self.log.lock().replace(&self.record);
            self.log.write_down(&self.record);
        }
    }

    /// Whoever asked has heard `error`, and it is still running.
    pub(crate) fn runs_on(&mut self, error: &str) {
        self.record.error = last_line(error);
        self.publish();
    }

    /// The end of it. Of an error the last line is kept: a traceback ends with what was raised.
    pub(crate) fn finish(&mut self, outcome: Outcome, error: &str) {
        self.record.error = last_line(error);
        self.record.outcome = Some(outcome);
        self.publish();
    }
}

fn last_line(text: &str) -> Option<String> {
    let last = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(last.trim().chars().take(1000).collect())
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.record.outcome.is_none() {
            self.finish(Outcome::Cancelled, "whoever asked is gone");
        }
    }
}

impl SystemTable for Log {
    fn table(&self) -> &'static Table {
        &evals::TABLE
    }

    fn rows(&self) -> SystemRows {
        let mut builder = BatchBuilder::new(&evals::TABLE);
        let mut strings = StringTable::default();
        for record in &self.lock().rows {
            builder.push(evals::Row {
                id: record.id,
                ts: Time(record.ts),
                asked_by: strings.id(&record.asked_by.who),
                peer: record.asked_by.peer.as_deref().map(|peer| strings.id(peer)),
                code: strings.id(&record.code),
                hash: strings.id(&record.hash),
                session: record.session.as_deref().map(|session| strings.id(session)),
                at: strings.id(at_name(record.at)),
                placed: record.placed.map(|at| strings.id(at_name(at))),
                step: record.step,
                ranks: record.ranks.as_deref().map(|ranks| strings.id(ranks)),
                status: strings.id(record.outcome.map_or("running", status_name)),
                duration: record.duration,
                training_waited: record.training_waited,
                output_bytes: i64::try_from(record.output_bytes).unwrap_or(i64::MAX),
                error: record.error.as_deref().map(|error| strings.id(error)),
            });
        }
        SystemRows { batch: builder.take(), strings }
    }
}

/// As people write it.
pub(crate) fn at_name(at: At) -> &'static str {
    match at {
        At::Auto => "auto",
        At::Now => "now",
        At::Step => "step",
    }
}

fn status_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Error | Outcome::Unspecified => "error",
        Outcome::Timeout => "timeout",
        Outcome::OutputLimit => "output limit",
        Outcome::NoBoundary => "no boundary",
        Outcome::Refused => "refused",
        Outcome::Cancelled => "cancelled",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ask(log: &Arc<Log>, code: &str, at: At) -> Entry {
        let asker = Asker { who: "uid:1000".into(), peer: Some("pid:7".into()) };
        log.begin(&asker, &EvalCall { code: code.into(), at: at.into(), session: "mine".into(), ..EvalCall::default() })
    }

    #[test]
    fn a_row_is_there_from_the_asking_to_the_end() {
        let log = Arc::new(Log::default());
        let mut entry = ask(&log, "print(1)", At::Auto);
        assert_eq!(log.rows().batch.rows, 1);
        assert!(log.lock().rows[0].outcome.is_none());
        entry.record.placed = Some(At::Now);
        entry.finish(Outcome::Error, "Traceback:\n  File\nValueError: no\n\n");
        drop(entry);
        let kept = log.lock().rows[0].clone();
        assert_eq!((kept.placed, kept.outcome), (Some(At::Now), Some(Outcome::Error)));
        assert_eq!(kept.error.as_deref(), Some("ValueError: no"));
        assert_eq!((kept.asked_by.peer.as_deref(), kept.session.as_deref()), (Some("pid:7"), Some("mine")));
        // As it is written down is as it comes back.
        assert_eq!(Record::of_message(kept.to_message()).to_message(), kept.to_message());
        drop(ask(&log, "print(2)", At::Step));
        assert_eq!(log.lock().rows[1].outcome, Some(Outcome::Cancelled));
    }

    #[test]
    fn old_rows_make_room() {
        let log = Arc::new(Log::default());
        let big = "x".repeat(1 << 20);
        for _ in 0..20 {
            ask(&log, &big, At::Auto).finish(Outcome::Ok, "");
        }
        let records = log.lock();
        assert_eq!(records.rows.len(), MOST_BYTES >> 20);
        assert_eq!(records.rows.back().unwrap().id, 20);
        assert!(records.rows.iter().all(|row| row.outcome == Some(Outcome::Ok)));
    }
}
