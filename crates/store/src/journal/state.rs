//! What those who record and the thread that writes have of a journal together.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::checkpoint::JournalCheckpoint;
use super::share::Share;

/// So many bytes are not kept waiting.
pub(super) const SYNC_BYTES: usize = 4 << 20;
/// How far the journal is.
#[derive(Debug, Clone, Default)]
pub struct Durable {
    /// Records up to this one are on disk, or never will be.
    pub position: u64,
    /// Why records are not kept for now.
    pub problem: Option<Arc<str>>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) directory: PathBuf,
    pub(super) state: Mutex<State>,
    pub(super) wake: Condvar,
    pub(super) durable: watch::Sender<Durable>,
    /// That the disk takes nothing has been said.
    pub(super) said: AtomicBool,
    pub(super) share: Share,
    /// How often it began to take nothing.
    pub(super) gaps: AtomicU64,
    /// Called when files should be written.
    pub(super) due: OnceLock<Due>,
}

/// What is to be called.
pub(super) struct Due(pub(super) Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Due")
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Encoded records that are not on disk.
    pub(super) waiting: Vec<Vec<u8>>,
    pub(super) bytes: usize,
    /// What of them is being written: it waits no more, and `current` does not have it yet.
    pub(super) in_flight: u64,
    /// Since when the oldest of them waits.
    pub(super) since: Option<Instant>,
    /// Records so far.
    pub(super) position: u64,
    pub(super) checkpoint: JournalCheckpoint,
    /// All appends that a record is of have lower numbers.
    pub(super) appends: u64,
    /// Files that are complete, oldest first, with what `appends` was at the end of each, and their size.
    pub(super) closed: VecDeque<(PathBuf, u64, u64)>,
    /// Size of the one that is written.
    pub(super) current: u64,
    /// How much of that is its head.
    pub(super) head: u64,
    /// What connections took in that head.
    pub(super) head_connections: usize,
    pub(super) hurry: bool,
    pub(super) stopping: bool,
    /// Stop without writing what waits: what a kill does.
    pub(super) abandoned: bool,
}

impl State {
    /// Bytes of the files that are complete.
    pub(super) fn complete(&self) -> u64 {
        self.closed.iter().map(|(_, _, bytes)| bytes).sum()
    }

    /// What has been written takes its place in the newest file.
    pub(super) fn written(&mut self, bytes: u64) {
        self.current += bytes;
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// About what the next head takes: as this one, and connections that were opened since.
    pub(super) fn next_head(&self) -> u64 {
        self.head + self.checkpoint.connection_bytes().saturating_sub(self.head_connections) as u64
    }

    /// Bytes of all files.
    pub(super) fn on_disk(&self) -> u64 {
        self.current + self.complete()
    }
}

impl Inner {
    /// Valid at every point, so a thread that panicked with it does no harm.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn say(&self, problem: impl fmt::Display) {
        if !self.said.swap(true, Ordering::Relaxed) {
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
        let mut state = State { head: 18, ..State::default() };
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
        let mut state = State { current: 10, in_flight: 7, ..State::default() };
        state.written(5);
        assert_eq!((state.current, state.in_flight), (15, 2));
    }
}
