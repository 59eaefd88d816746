//! `probe.events`: what the collector noticed, by [`RunEvents::record`].
//!
//! The table is bounded and drops its oldest rows. Their numbers go on, so that dropped rows are counted.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arrow::array::RecordBatch;
use probe_common::clock;
use probe_common::error::Result;
use probe_proto::encode::StringTable;
use probe_proto::table::{Table, Time};
use probe_proto::tables::events;
use probe_proto::v1::{self, record};
use probe_store::journal::{Journal, NewestRows};
use probe_store::{ProcessIdentity, RecordBatchBuilder, SystemTable};

use crate::truncate::truncate;

/// Longest message and longest details (bytes), so that what is kept is bounded.
const MAX_MESSAGE_LENGTH: usize = 1024;
const MAX_DETAILS_LENGTH: usize = 64 << 10;

/// How bad an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// No action is needed.
    Info,
    /// A person should look.
    Warning,
    /// Training is broken, or will be.
    Error,
}

impl Severity {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// An event that is to be written down: `RunEvent::new("hang", Severity::Error, "rank 1 …").of_process(&identity).at_step(7)`.
#[derive(Debug, Clone)]
pub struct RunEvent(v1::Event);

impl RunEvent {
    /// An event of the whole run, noticed now.
    pub fn new(kind: &str, severity: Severity, message: impl Into<String>) -> Self {
        Self(v1::Event {
            ts: clock::unix_ns(),
            kind: kind.to_owned(),
            severity: severity.as_str().to_owned(),
            message: truncate(message.into(), MAX_MESSAGE_LENGTH),
            ..v1::Event::default()
        })
    }

    /// Makes the event one of this process.
    pub fn of_process(mut self, process: &ProcessIdentity) -> Self {
        self.0.host = Some(process.host.to_string());
        self.0.pid = Some(process.pid);
        self.0.rank = process.rank;
        self
    }

    /// Makes the event one of this rank.
    pub fn at_rank(mut self, rank: i32) -> Self {
        self.0.rank = Some(rank);
        self
    }

    /// Sets the step that the event is about, or at which it was noticed.
    pub fn at_step(mut self, step: i64) -> Self {
        self.0.step = Some(step);
        self
    }

    /// Adds details, a JSON object. An object that is too long is left out, since half of it would be no JSON.
    pub fn with_details(mut self, details: &serde_json::Value) -> Self {
        self.0.details = Some(details.to_string()).filter(|details| details.len() <= MAX_DETAILS_LENGTH);
        self
    }
}

/// All events that are kept.
#[derive(Debug)]
pub struct RunEvents {
    run: Arc<str>,
    rows: Mutex<NewestRows<v1::Event>>,
    /// Where events are written down, for a collector that goes on after this one.
    journal: OnceLock<Arc<Journal>>,
}

impl RunEvents {
    /// The events that the collector before had noticed.
    pub fn restore(run: &Arc<str>, rows: &NewestRows<v1::Event>) -> Self {
        Self { run: Arc::clone(run), rows: Mutex::new(rows.clone()), journal: OnceLock::new() }
    }

    /// Writes events to `journal` from now on.
    pub fn attach_journal(&self, journal: Arc<Journal>) {
        // As many as the next collector would have, and as the run's directory has in the end.
        self.lock().limit_bytes(journal.list_bytes());
        // A run has one journal: a second call names the same one.
        let _ = self.journal.set(journal);
    }

    fn lock(&self) -> MutexGuard<'_, NewestRows<v1::Event>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event: a row of `probe.events` from now on, on disk within a second.
    pub fn record(&self, event: RunEvent) {
        let RunEvent(mut event) = event;
        let mut rows = self.lock();
        event.id = rows.newest() + 1;
        rows.insert(event.clone());
        // With the lock, so that numbers are in order in the journal too.
        if let Some(journal) = self.journal.get() {
            journal.record_row(record::Record::Event(event));
        }
    }
}

impl SystemTable for RunEvents {
    fn table(&self) -> &'static Table {
        &events::TABLE
    }

    fn rows(&self) -> Result<RecordBatch> {
        let mut builder = RecordBatchBuilder::new(&events::TABLE);
        let mut strings = StringTable::default();
        for event in self.lock().iter() {
            builder.push(events::Row {
                id: event.id,
                ts: Time(event.ts),
                kind: strings.id(&event.kind),
                severity: strings.id(&event.severity),
                run: strings.id(&self.run),
                host: event.host.as_deref().map(|host| strings.id(host)),
                pid: event.pid,
                rank: event.rank,
                step: event.step,
                message: strings.id(&event.message),
                details: event.details.as_deref().map(|details| strings.id(details)),
            });
        }
        builder.finish(&strings)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn events_go_on_where_those_before_ended() {
        let events = RunEvents::restore(&"gpt@1".into(), &NewestRows::default());
        for step in 0..5 {
            events.record(RunEvent::new("slow", Severity::Warning, "slower").at_step(step));
        }
        let restored = RunEvents::restore(&"gpt@1".into(), &events.lock());
        restored.record(RunEvent::new("slow", Severity::Info, "no longer"));
        let numbers: Vec<_> = restored.lock().iter().map(|event| (event.id, event.step)).collect();
        assert_eq!(numbers[4..], [(5, Some(4)), (6, None)]);
    }

    #[test]
    fn what_is_too_long_is_cut_or_left_out() {
        let events = RunEvents::restore(&"gpt@1".into(), &NewestRows::default());
        let long = serde_json::Value::String("x".repeat(MAX_DETAILS_LENGTH));
        events.record(RunEvent::new("hang", Severity::Error, "y".repeat(5000)).with_details(&long));
        let rows = events.lock();
        let event = rows.iter().next().unwrap();
        assert_eq!((event.message.len(), &event.details), (MAX_MESSAGE_LENGTH, &None));
    }
}
