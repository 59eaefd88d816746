//! The journal being written: records wait in memory until a thread of its own has them on disk.
//!
//! Nobody who records waits for the disk. What is on disk is told through [`Journal::durable`]; whoever brings more
//! than the disk takes is made to wait by [`Journal::room`]. A disk that takes nothing (full, read-only, broken) does
//! not stop the run: records are then not kept, [`Durable::problem`] says so, and the journal tries again.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use probe_proto::v1::{self, record};
use tokio::sync::watch;

use super::thread::Writer;
use super::{Ledger, frame};
use crate::error::Result;
use crate::paths::named;

/// So many bytes are not kept waiting.
pub(super) const SYNC_BYTES: usize = 4 << 20;
/// More than this is not taken from those who can wait.
const MOST_WAITING: usize = 64 << 20;
/// A file that is larger is followed by the next one, so that it can go.
pub(crate) const FILE_BYTES: u64 = 64 << 20;

/// How far the journal is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durable {
    /// Records up to this one are on disk, or never will be.
    pub(crate) position: u64,
    /// Why records are not kept for now.
    pub(crate) problem: Option<Arc<str>>,
}

/// What a journal begins with.
#[derive(Debug, Default)]
pub(crate) struct Begin {
    /// What was known before.
    pub(crate) ledger: Ledger,
    /// Files of the collector before, whose rows the store has taken.
    pub(crate) older: Vec<PathBuf>,
    /// Number of the first new file.
    pub(crate) number: u64,
    /// Batches that the store has taken so far.
    pub(crate) appends: u64,
    /// A file of this size is followed by the next one.
    pub(crate) file_bytes: u64,
}

/// A journal that is open. Dropped, it writes what it has and ends.
#[derive(Debug)]
pub(crate) struct Journal {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) directory: PathBuf,
    pub(super) state: Mutex<State>,
    pub(super) wake: Condvar,
    pub(super) durable: watch::Sender<Durable>,
    /// That the disk takes nothing has been said.
    pub(super) said: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Encoded records that are not on disk.
    pub(super) waiting: Vec<Vec<u8>>,
    pub(super) bytes: usize,
    /// Since when the oldest of them waits.
    pub(super) since: Option<Instant>,
    /// Records so far.
    pub(super) position: u64,
    pub(super) ledger: Ledger,
    /// Newest append that a record is of.
    pub(super) appends: u64,
    /// Files that are complete, oldest first, with the newest append in each and their size.
    pub(super) closed: VecDeque<(PathBuf, u64, u64)>,
    /// Size of the one that is written.
    pub(super) current: u64,
    pub(super) hurry: bool,
    pub(super) stopping: bool,
    /// Stop without writing what waits: what a kill does.
    pub(super) abandoned: bool,
}

impl Journal {
    /// Begins one in `directory`, which is made where it is not there.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn begin(directory: &Path, mut begin: Begin) -> Result<Arc<Self>> {
        fs::create_dir_all(directory).map_err(|error| named(directory, &error))?;
        for evicted in &mut begin.ledger.evicted {
            evicted.appends = begin.appends;
        }
        begin.ledger.connections.clear();
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.len());
        let closed = begin.older.iter().map(|path| (path.clone(), begin.appends, size(path))).collect();
        let state = State { ledger: begin.ledger, appends: begin.appends, closed, ..State::default() };
        let inner = Arc::new(Inner {
            directory: directory.to_owned(),
            state: Mutex::new(state),
            wake: Condvar::new(),
            durable: watch::Sender::new(Durable::default()),
            said: AtomicBool::new(false),
        });
        let mut writer = Writer::new(Arc::clone(&inner), begin.number, begin.file_bytes);
        writer.next_file().map_err(|error| named(directory, &error))?;
        let thread = std::thread::Builder::new().name("probe-journal".into()).spawn(move || writer.run())?;
        Ok(Arc::new(Self { inner, thread: Mutex::new(Some(thread)) }))
    }

    /// Writes a record down, in the order of calls. Returns its position.
    pub(crate) fn record(&self, record: record::Record) -> u64 {
        self.put(record, None)
    }

    /// The same for the batch that is the store's append `number`; call it after the append.
    pub(crate) fn record_append(&self, record: record::Record, number: u64) -> u64 {
        self.put(record, Some(number))
    }

    fn put(&self, record: record::Record, append: Option<u64>) -> u64 {
        let record = v1::Record { record: Some(record) };
        // The long part of it, without the lock.
        let frame = frame::encode(&record);
        let mut state = self.inner.lock();
        state.ledger.apply(&record);
        state.position += 1;
        state.bytes += frame.len();
        state.waiting.push(frame);
        state.appends = state.appends.max(append.unwrap_or(0));
        if state.since.is_none() {
            state.since = Some(Instant::now());
            self.inner.wake.notify_one();
        } else if state.bytes >= SYNC_BYTES {
            self.inner.wake.notify_one();
        }
        state.position
    }

    /// Tells what is on disk.
    pub(crate) fn durable(&self) -> watch::Receiver<Durable> {
        self.inner.durable.subscribe()
    }

    /// Somebody waits for what was recorded so far.
    pub(crate) fn hurry(&self) {
        self.inner.lock().hurry = true;
        self.inner.wake.notify_one();
    }

    /// Waits until everything recorded so far is on disk, or can't be: then why. Not for async code.
    pub(crate) fn sync(&self) -> Option<Arc<str>> {
        let position = self.inner.lock().position;
        let mut durable = self.durable();
        while durable.borrow_and_update().position < position {
            self.hurry();
            let changed = futures::executor::block_on(durable.changed());
            if changed.is_err() {
                return Some("the journal has ended".into());
            }
        }
        self.problem()
    }

    /// Resolves when there is room for more records.
    pub(crate) async fn room(&self) {
        let mut durable = self.durable();
        while self.inner.lock().bytes > MOST_WAITING {
            if durable.changed().await.is_err() {
                return;
            }
        }
    }

    /// Says what is wrong with the disk, once in the life of a collector: it comes and goes, and the tables have it.
    pub(crate) fn say(&self, problem: impl fmt::Display) {
        self.inner.say(problem);
    }

    /// Why records are not kept for now.
    pub(crate) fn problem(&self) -> Option<Arc<str>> {
        self.inner.durable.borrow().problem.clone()
    }

    /// Bytes of its files, and how many they are.
    pub(crate) fn size(&self) -> (u64, u64) {
        let state = self.inner.lock();
        (state.current + state.closed.iter().map(|(_, _, bytes)| bytes).sum::<u64>(), 1 + state.closed.len() as u64)
    }

    /// Every append before `oldest` is in a Parquet file or evicted: files that have nothing newer go.
    pub(crate) fn trim(&self, oldest: u64) {
        let mut state = self.inner.lock();
        while state.closed.front().is_some_and(|(_, newest, _)| *newest < oldest) {
            let Some((path, newest, _)) = state.closed.pop_front() else { return };
            // One that stays is replayed in vain, and gone with the directory.
            let _ = fs::remove_file(path);
            state.ledger.settle(newest.saturating_add(1));
        }
    }

    /// Writes what there is and ends.
    pub(crate) fn finish(&self) {
        self.inner.lock().stopping = true;
        self.join();
    }

    /// Ends as a killed collector does: what is not on disk by now never will be.
    #[cfg(test)]
    pub(crate) fn abandon(&self) {
        {
            let mut state = self.inner.lock();
            state.stopping = true;
            state.abandoned = true;
        }
        self.join();
    }

    fn join(&self) {
        self.inner.wake.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.finish();
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
