//! `probe.evals`: the snippets that were asked for, by which caller, and how they ended. The table is bounded and drops its
//! oldest rows.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arrow::array::RecordBatch;
use probe_common::clock;
use probe_common::error::Result;
use probe_proto::encode::StringTable;
use probe_proto::table::{Table, Time};
use probe_proto::tables::evals;
use probe_proto::v1::{self, At, EvalCall, Outcome, record};
use probe_store::journal::{Journal, NewestRows, NumberedRow};
use probe_store::{RecordBatchBuilder, SystemTable};

use crate::server::audit::hash;
use crate::server::pace::JournalRate;
use crate::server::peer::AuditedCaller;
use crate::truncate::truncate;

/// Longest snippet (bytes).
pub(super) const MAX_CODE_LENGTH: usize = 1 << 20;
/// Longest name of a session (bytes).
pub(super) const MAX_SESSION_NAME_LENGTH: usize = 64;
/// A row of `probe.evals`.
#[derive(Debug, Clone)]
pub struct EvalRecord {
    id: i64,
    ts: i64,
    asked_by: AuditedCaller,
    code: String,
    hash: String,
    session: Option<String>,
    at: At,
    pub placed: Option<At>,
    pub step: Option<i64>,
    pub ranks: Option<String>,
    outcome: Option<Outcome>,
    pub duration: Option<f64>,
    pub training_waited: Option<f64>,
    pub output_bytes: u64,
    pub error: Option<String>,
}

impl EvalRecord {
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
            asked_by: AuditedCaller { who: eval.asked_by, peer: eval.peer },
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

/// The rows that are kept.
#[derive(Debug, Default)]
pub struct EvalLog {
    records: Mutex<NewestRows<EvalRecord>>,
    /// Where rows are written down, for a collector that goes on after this one.
    journal: OnceLock<Arc<Journal>>,
    pace: JournalRate,
}

impl NumberedRow for EvalRecord {
    fn number(&self) -> i64 {
        self.id
    }

    fn bytes(&self) -> usize {
        let texts = [&self.asked_by.peer, &self.session, &self.ranks, &self.error];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        size_of::<Self>() + texts + self.code.len() + self.hash.len() + self.asked_by.who.len()
    }
}

impl EvalLog {
    fn lock(&self) -> MutexGuard<'_, NewestRows<EvalRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log with the rows of the collector before. Snippets that were running then have ended with it.
    pub fn restore(evals: &NewestRows<v1::Eval>) -> Self {
        let records = evals.iter().cloned().map(EvalRecord::of_message).collect();
        Self { records: Mutex::new(records), journal: OnceLock::new(), pace: JournalRate::default() }
    }

    /// Writes rows to `journal` from now on.
    pub fn attach_journal(&self, journal: Arc<Journal>) {
        // As many as the next collector would have, and as the run's directory has in the end.
        self.lock().limit_bytes(journal.list_bytes());
        // A run has one journal: a second call names the same one.
        let _ = self.journal.set(journal);
    }

    fn write_down(&self, eval: v1::Eval) {
        if let Some(journal) = self.journal.get() {
            journal.record_row(record::Record::Eval(eval));
        }
    }

    /// Resolves when a snippet of this length may be recorded. A caller that asks for more than the journal takes waits.
    pub async fn wait_for_turn(&self, asked_by: &AuditedCaller, code: &str) {
        if let Some(journal) = self.journal.get() {
            self.pace
                .wait_for_turn(&asked_by.who, code.len().min(MAX_CODE_LENGTH), journal.caller_bytes_per_second())
                .await;
        }
    }

    /// Adds the row of a snippet that was asked for.
    pub fn begin(self: &Arc<Self>, asked_by: &AuditedCaller, call: &EvalCall) -> EvalEntry {
        let mut records = self.lock();
        let record = EvalRecord::new(records.newest() + 1, asked_by, call);
        records.insert(record.clone());
        // With the lock, so that numbers are in order in the journal too.
        self.write_down(record.to_message());
        drop(records);
        EvalEntry { log: Arc::clone(self), record, listed: true }
    }

    /// Adds the row of a snippet that is refused.
    pub fn refuse(&self, asked_by: &AuditedCaller, call: &EvalCall, why: &str) {
        let mut records = self.lock();
        let mut record = EvalRecord::new(records.newest() + 1, asked_by, call);
        record.error = last_line(why);
        record.outcome = Some(Outcome::Refused);
        self.write_down(record.to_message());
        records.insert(record);
    }

    /// An entry without a row, for a call that runs no code of the client.
    pub fn unlisted(self: &Arc<Self>, asked_by: &AuditedCaller, call: &EvalCall) -> EvalEntry {
        EvalEntry { log: Arc::clone(self), record: EvalRecord::new(0, asked_by, call), listed: false }
    }
}

impl EvalRecord {
    fn new(id: i64, asked_by: &AuditedCaller, call: &EvalCall) -> Self {
        Self {
            id,
            ts: clock::unix_ns(),
            asked_by: asked_by.clone(),
            code: truncate(call.code.clone(), MAX_CODE_LENGTH),
            hash: hash(&call.code),
            session: Some(truncate(call.session.clone(), MAX_SESSION_NAME_LENGTH)).filter(|name| !name.is_empty()),
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

/// The row of a running snippet. If it is dropped before [`EvalEntry::finish`], the snippet was cancelled.
#[derive(Debug)]
pub struct EvalEntry {
    log: Arc<EvalLog>,
    pub record: EvalRecord,
    listed: bool,
}

impl EvalEntry {
    /// Puts the record's new state into the table.
    pub fn publish(&self) {
        if self.listed {
            self.log.lock().insert(self.record.clone());
            // The code was written down when the snippet was asked for.
            self.log.write_down(v1::Eval { code: String::new(), ..self.record.to_message() });
        }
    }

    /// Keeps the row as running, with the error that the client was told.
    pub fn runs_on(&mut self, error: &str) {
        self.record.error = last_line(error);
        self.publish();
    }

    /// Ends the row. Of an error the last line is kept: a traceback ends with what was raised.
    pub fn finish(&mut self, outcome: Outcome, error: &str) {
        self.record.error = last_line(error);
        self.record.outcome = Some(outcome);
        self.publish();
    }
}

fn last_line(text: &str) -> Option<String> {
    let last = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(last.trim().chars().take(1000).collect())
}

impl Drop for EvalEntry {
    fn drop(&mut self) {
        if self.record.outcome.is_none() {
            self.finish(Outcome::Cancelled, "the client has disconnected");
        }
    }
}

impl SystemTable for EvalLog {
    fn table(&self) -> &'static Table {
        &evals::TABLE
    }

    fn rows(&self) -> Result<RecordBatch> {
        let mut builder = RecordBatchBuilder::new(&evals::TABLE);
        let mut strings = StringTable::default();
        for record in self.lock().iter() {
            builder.push(evals::Row {
                id: record.id,
                ts: Time(record.ts),
                asked_by: strings.id(&record.asked_by.who),
                peer: record.asked_by.peer.as_deref().map(|peer| strings.id(peer)),
                code: strings.id(&record.code),
                hash: strings.id(&record.hash),
                session: record.session.as_deref().map(|session| strings.id(session)),
                at: strings.id(record.at.as_str()),
                placed: record.placed.map(|at| strings.id(at.as_str())),
                step: record.step,
                ranks: record.ranks.as_deref().map(|ranks| strings.id(ranks)),
                status: strings.id(&record.outcome.map_or("running".into(), status)),
                duration: record.duration,
                training_waited: record.training_waited,
                output_bytes: i64::try_from(record.output_bytes).unwrap_or(i64::MAX),
                error: record.error.as_deref().map(|error| strings.id(error)),
            });
        }
        builder.finish(&strings)
    }
}

/// The value of `probe.evals.status`. An outcome that this collector does not know is an error.
fn status(outcome: Outcome) -> String {
    let known = if outcome == Outcome::Unspecified { Outcome::Error } else { outcome };
    known.as_str().replace('_', " ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ask(log: &Arc<EvalLog>, code: &str, at: At) -> EvalEntry {
        let asker = AuditedCaller { who: "uid:1000".into(), peer: Some("pid:7".into()) };
        log.begin(&asker, &EvalCall { code: code.into(), at: at.into(), session: "mine".into(), ..EvalCall::default() })
    }

    fn row(log: &EvalLog, index: usize) -> EvalRecord {
        log.lock().iter().nth(index).unwrap().clone()
    }

    #[test]
    fn a_row_is_there_from_the_asking_to_the_end() {
        let log = Arc::new(EvalLog::default());
        let mut entry = ask(&log, "print(1)", At::Auto);
        assert_eq!(log.rows().unwrap().num_rows(), 1);
        assert!(row(&log, 0).outcome.is_none());
        entry.record.placed = Some(At::Now);
        entry.finish(Outcome::Error, "Traceback:\n  File\nValueError: no\n\n");
        drop(entry);
        let kept = row(&log, 0);
        assert_eq!((kept.placed, kept.outcome), (Some(At::Now), Some(Outcome::Error)));
        assert_eq!(kept.error.as_deref(), Some("ValueError: no"));
        assert_eq!((kept.asked_by.peer.as_deref(), kept.session.as_deref()), (Some("pid:7"), Some("mine")));
        // A record comes back from the journal as it was written.
        assert_eq!(EvalRecord::of_message(kept.to_message()).to_message(), kept.to_message());
        drop(ask(&log, "print(2)", At::Step));
        assert_eq!(row(&log, 1).outcome, Some(Outcome::Cancelled));
    }
}
