//! The state of a journal that the thread that writes shares with all that record.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::checkpoint::JournalCheckpoint;
use super::share::DiskShare;

/// Waiting bytes that are written at once.
pub(super) const SYNC_BYTES: usize = 4 << 20;

/// How far the journal is on disk.
#[derive(Debug, Clone, Default)]
pub struct SyncedPosition {
    /// Records up to this one are on disk, or never will be.
    pub position: u64,
    /// Why records are not kept for now.
    pub problem: Option<Arc<str>>,
}

#[derive(Debug)]
pub(super) struct JournalShared {
    pub(super) directory: PathBuf,
    pub(super) state: Mutex<JournalState>,
    pub(super) wake: Condvar,
    pub(super) durable: watch::Sender<SyncedPosition>,
    /// Whether a problem of the disk has been reported.
    pub(super) is_reported: AtomicBool,
    pub(super) share: DiskShare,
    /// How often the disk began to take nothing.
    pub(super) gaps: AtomicU64,
    /// Called when files should be written.
    pub(super) due: OnceLock<DueCallback>,
}

/// The callback of [`super::Journal::when_due`].
pub(super) struct DueCallback(pub(super) Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for DueCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Due")
    }
}

#[derive(Debug, Default)]
pub(super) struct JournalState {
    /// Encoded records that are not on disk.
    pub(super) waiting: Vec<Vec<u8>>,
    /// Bytes of the waiting records.
    pub(super) bytes: usize,
    /// Bytes that are being written: they are in neither `bytes` nor `current`.
    pub(super) in_flight: u64,
    /// Since when the oldest of the waiting records waits.
    pub(super) since: Option<Instant>,
    /// Number of records so far.
    pub(super) position: u64,
    pub(super) checkpoint: JournalCheckpoint,
    /// One more than the highest number of an append that is recorded.
    pub(super) appends: u64,
    /// Files that are complete, oldest first, with the value of `appends` at the end of each, and their size.
    pub(super) closed: VecDeque<(PathBuf, u64, u64)>,
    /// Size of the file that is being written.
    pub(super) current: u64,
    /// Size of the head of that file.
    pub(super) head: u64,
    /// Bytes of connections in that head.
    pub(super) head_connections: usize,
    pub(super) sync_now: bool,
    pub(super) stopping: bool,
    /// Stop without writing the records that wait, as a kill does.
    pub(super) abandoned: bool,
}

impl JournalState {
    /// Bytes of the files that are complete.
    pub(super) fn complete(&self) -> u64 {
        self.closed.iter().map(|(_, _, bytes)| bytes).sum()
    }

    /// Counts bytes that have been written as part of the newest file.
    pub(super) fn written(&mut self, bytes: u64) {
        self.current += bytes;
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// About the size of the next head: that of this one, and of connections that were opened since.
    pub(super) fn next_head(&self) -> u64 {
        self.head + self.checkpoint.connection_bytes().saturating_sub(self.head_connections) as u64
    }

    /// Bytes of all files.
    pub(super) fn on_disk(&self) -> u64 {
        self.current + self.complete()
    }
}

impl JournalShared {
    /// Locks the state. It is valid at every point, so a thread that panicked while it held the lock does no harm.
    pub(super) fn lock(&self) -> MutexGuard<'_, JournalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn report_problem(&self, problem: impl fmt::Display) {
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "rows are kept in memory only for now: {problem}; hint: make room on that disk, the collector tries \
                 again by itself, and probe.agents.problem says how it is"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use probe_proto::v1::{self, record};

    use super::*;

    #[test]
    fn the_next_head_has_the_connections_that_were_opened_since() {
        let hello = v1::Hello { instance: "one".into(), host: "x".repeat(1000), ..v1::Hello::default() };
        let mut state = JournalState { head: 18, ..JournalState::default() };
        let mut apply = |record| {
            state.checkpoint.apply(&v1::Record { record: Some(record) });
            state.next_head()
        };
        for _ in 0..2 {
            let opened = v1::Opened { connection: 1, hello: Some(hello.clone()), unix_ns: 0 };
            assert!((1018..1100).contains(&apply(record::Record::Opened(opened))));
        }
        assert_eq!(apply(record::Record::Closed(v1::Closed { connection: 1, ..v1::Closed::default() })), 18);
    }

    #[test]
    fn what_is_being_written_is_counted_once() {
        let mut state = JournalState { current: 10, in_flight: 7, ..JournalState::default() };
        state.written(5);
        assert_eq!((state.current, state.in_flight), (15, 2));
    }
}
