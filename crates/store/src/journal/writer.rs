//! Writes the journal: records wait in memory until the journal's own thread has written them to disk.
//!
//! Recording does not wait for the disk. [`Journal::durable`] says what is on disk, and [`Journal::wait_for_room`] makes senders
//! wait if they outrun the disk. A disk that takes nothing (full, read-only, broken) does not stop the run: records are then not
//! kept, [`SyncedPosition::problem`] says so, and the journal tries again. This also happens when the journal has taken its share
//! of the disk ([`super::share`]) and files can't be written fast enough for it to shrink.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use probe_common::durable;
use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use probe_proto::v1::{self, record};
use tokio::sync::watch;

use super::checkpoint::JournalCheckpoint;
use super::frame;
use super::reserve;
use super::share::DiskShare;
use super::state::{DueCallback, JournalShared, JournalState, SYNC_BYTES, SyncedPosition};
use super::thread::JournalWriter;

/// Waiting bytes past which [`Journal::wait_for_room`] waits.
const MAX_WAITING: usize = 64 << 20;

/// The state with which a journal begins.
#[derive(Debug, Default)]
pub struct JournalStart {
    /// The checkpoint of the collector before.
    pub checkpoint: JournalCheckpoint,
    /// Journal files of the collector before, whose rows the store has.
    pub older: Vec<PathBuf>,
    /// Number of the first new file.
    pub number: u64,
    /// Number of batches that the store has appended so far.
    pub appends: u64,
    /// Bytes that the run may take on disk, of which the journal has a share.
    pub disk: u64,
}

/// A journal that is open. When dropped, it writes the records that wait and ends.
#[derive(Debug)]
pub struct Journal {
    inner: Arc<JournalShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Begins a journal in `directory`, which is created where it does not exist.
    ///
    /// # Errors
    /// The file system's.
    pub fn begin(directory: &Path, mut begin: JournalStart) -> Result<Arc<Self>> {
        durable::create_directory(directory).map_err(|error| io_error_at(directory, error))?;
        for evicted in &mut begin.checkpoint.evicted {
            evicted.appends = begin.appends;
        }
        begin.checkpoint.close_all();
        let share = DiskShare { disk: begin.disk };
        begin.checkpoint.limit_bytes(share.list_bytes());
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.len());
        let closed = begin.older.iter().map(|path| (path.clone(), begin.appends, size(path))).collect();
        let state =
            JournalState { checkpoint: begin.checkpoint, appends: begin.appends, closed, ..JournalState::default() };
        let inner = Arc::new(JournalShared {
            directory: directory.to_owned(),
            state: Mutex::new(state),
            wake: Condvar::new(),
            durable: watch::Sender::new(SyncedPosition::default()),
            is_reported: AtomicBool::new(false),
            share,
            gaps: AtomicU64::new(0),
            due: OnceLock::new(),
        });
        let mut writer = JournalWriter::new(Arc::clone(&inner), begin.number);
        writer.next_file(false).map_err(|error| io_error_at(directory, error))?;
        if let Err(error) = reserve::allocate(directory, begin.disk) {
            // Only needed where the disk is full at the end, too.
            tracing::debug!("no reserve in {}: {error}", directory.display());
        }
        let thread = std::thread::Builder::new().name("probe-journal".into()).spawn(move || writer.run());
        let thread = thread.map_err(Error::no_thread)?;
        Ok(Arc::new(Self { inner, thread: Mutex::new(Some(thread)) }))
    }

    /// Adds a record, in the order of calls. Returns its position.
    pub fn record(&self, record: record::Record) -> u64 {
        self.put(record, None, true)
    }

    /// Records a row of a list that the head of the next file has too. Where the disk hangs and much waits already, it is only in that
    /// head: questions must not fill the memory.
    pub fn record_row(&self, record: record::Record) {
        self.put(record, None, false);
    }

    /// Records the batch that is the store's append `number`. Call it after the append.
    pub fn record_append(&self, record: record::Record, number: u64) -> u64 {
        self.put(record, Some(number), true)
    }

    fn put(&self, record: record::Record, append: Option<u64>, is_needed: bool) -> u64 {
        let record = v1::Record { record: Some(record) };
        // Encoding takes long, so it is done without the lock.
        let frame = frame::encode(&record);
        let mut state = self.inner.lock();
        state.checkpoint.apply(&record);
        if !is_needed && state.bytes > 2 * MAX_WAITING {
            return state.position;
        }
        state.position += 1;
        state.bytes += frame.len();
        state.waiting.push(frame);
        state.appends = state.appends.max(append.map_or(0, |number| number + 1));
        if state.since.is_none() {
            state.since = Some(Instant::now());
            self.inner.wake.notify_one();
        } else if state.bytes >= SYNC_BYTES {
            self.inner.wake.notify_one();
        }
        state.position
    }

    /// A receiver of how far the journal is on disk.
    pub fn durable(&self) -> watch::Receiver<SyncedPosition> {
        self.inner.durable.subscribe()
    }

    /// Makes the journal's thread write the records so far at once, because a caller waits for them.
    pub fn sync_now(&self) {
        self.inner.lock().sync_now = true;
        self.inner.wake.notify_one();
    }

    /// Waits until everything recorded so far is on disk, or returns why it can't be. Not for async code.
    pub fn sync(&self) -> Option<Arc<str>> {
        let position = self.inner.lock().position;
        let mut durable = self.durable();
        while durable.borrow_and_update().position < position {
            self.sync_now();
            let changed = futures::executor::block_on(durable.changed());
            if changed.is_err() {
                return Some("the journal has ended".into());
            }
        }
        self.problem()
    }

    /// Resolves when there is room for more records.
    pub async fn wait_for_room(&self) {
        let mut durable = self.durable();
        while self.inner.lock().bytes > MAX_WAITING {
            if durable.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reports what is wrong with the disk, once in the life of a collector: problems come and go, and the tables have them.
    pub fn report_problem(&self, problem: impl fmt::Display) {
        self.inner.report_problem(problem);
    }

    /// Why records are not kept for now.
    pub fn problem(&self) -> Option<Arc<str>> {
        self.inner.durable.borrow().problem.clone()
    }

    /// How often the disk began to take nothing: what was recorded then may be nowhere on disk.
    pub fn gaps(&self) -> u64 {
        self.inner.gaps.load(Ordering::Acquire)
    }

    /// Bytes and number of the journal's files.
    pub fn disk_usage(&self) -> (u64, u64) {
        let state = self.inner.lock();
        (state.on_disk(), 1 + state.closed.len() as u64)
    }

    /// Bytes that the journal may take on disk, with its reserve.
    pub fn disk_limit(&self) -> u64 {
        self.inner.share.limit_bytes(self.inner.lock().head) + reserve::bytes(self.inner.share.disk)
    }

    /// Whether the journal has nearly all bytes that it may take, so that senders should wait for files to be written.
    pub fn crowded(&self) -> bool {
        let state = self.inner.lock();
        // With room for the next head, which the writing thread needs, and for records that come at the same time.
        let coming = state.in_flight + state.bytes as u64 + state.next_head();
        state.on_disk() + coming > self.inner.share.limit_bytes(state.head) / 4 * 3
    }

    /// All appends below this number have to be in Parquet files so that the journal's complete files can be removed; None
    /// while these may stay.
    pub fn overdue(&self) -> Option<u64> {
        self.inner.overdue()
    }

    /// Sets the callback for when something is [overdue](Self::overdue), and when the disk takes records again. The journal's
    /// own thread calls it, so it must not wait for the journal.
    pub fn when_due(&self, due: impl Fn() + Send + Sync + 'static) {
        // A journal has one store, which calls this once.
        let _ = self.inner.due.set(DueCallback(Box::new(due)));
    }

    /// Whether there is room for `bytes` more of text of open connections. The caller then adds the text with the next record.
    pub fn has_room_for_text(&self, bytes: usize) -> bool {
        let texts = self.inner.lock().checkpoint.text_bytes();
        (texts + bytes) as u64 <= self.inner.share.text_bytes()
    }

    /// Bytes that each of the checkpoint's lists of rows may take.
    pub fn list_bytes(&self) -> usize {
        self.inner.share.list_bytes()
    }

    /// Bytes of records that one client may cause in a second.
    pub fn caller_bytes_per_second(&self) -> u64 {
        self.inner.share.caller_bytes_per_second()
    }

    /// Removes files that have nothing newer than `oldest`: every append before that is in a Parquet file or evicted. For one
    /// caller at a time.
    pub fn trim(&self, oldest: u64) {
        let gone: Vec<(PathBuf, u64)> = {
            let state = self.inner.lock();
            // The newest file stays in any case: it has the newest checkpoint.
            let most = if state.current > 0 { state.closed.len() } else { state.closed.len().saturating_sub(1) };
            let gone = state.closed.iter().take(most).take_while(|(_, appends, _)| *appends <= oldest);
            gone.map(|(path, appends, _)| (path.clone(), *appends)).collect()
        };
        let Some((_, appends)) = gone.last() else { return };
        // Without the lock, which every recording needs.
        for (path, _) in &gone {
            // A file that can't be removed is replayed in vain, and removed with the directory.
            let _ = fs::remove_file(path);
        }
        let mut state = self.inner.lock();
        state.closed.drain(..gone.len());
        state.checkpoint.add_up_evictions(*appends);
    }

    /// Writes the records that wait and ends.
    pub fn finish(&self) {
        self.inner.lock().stopping = true;
        self.join();
    }

    /// Ends as a killed collector does: records that are not on disk yet are lost. For tests.
    #[doc(hidden)]
    pub fn abandon(&self) {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn text(bytes: usize) -> record::Record {
        let strings = v1::Strings { first: 0, values: vec!["x".repeat(bytes)] };
        let content = Some(v1::agent_message::Content::Strings(strings));
        record::Record::AgentMessage(v1::AgentMessage { connection: 1, content, unix_ns: 0 })
    }

    fn begin(directory: &Path, disk: u64) -> Arc<Journal> {
        let journal = Journal::begin(directory, JournalStart { disk, ..JournalStart::default() }).unwrap();
        let hello = v1::Hello { instance: "one".into(), ..v1::Hello::default() };
        journal.record(record::Record::Opened(v1::Opened { connection: 1, hello: Some(hello), unix_ns: 0 }));
        journal
    }

    #[test]
    fn rows_of_lists_take_no_memory_where_the_disk_hangs() {
        let directory = tempfile::tempdir().unwrap();
        let journal = begin(directory.path(), 64 << 20);
        assert_eq!(journal.sync(), None);
        let query = |id| record::Record::Query(v1::Query { id, ..v1::Query::default() });
        let mut state = journal.inner.lock();
        state.bytes = 3 * MAX_WAITING;
        drop(state);
        journal.record_row(query(1));
        let mut state = journal.inner.lock();
        assert_eq!((state.bytes, state.waiting.len()), (3 * MAX_WAITING, 0));
        state.bytes = 0;
        drop(state);
        // The head of the next file has it.
        assert_eq!(journal.inner.lock().checkpoint.queries.iter().count(), 1);
        journal.record_row(query(2));
        assert_eq!(journal.sync(), None);
    }

    #[test]
    fn a_large_head_does_not_make_a_file_of_every_record() {
        let directory = tempfile::tempdir().unwrap();
        let journal = begin(directory.path(), 4 << 20);
        // More than a file may have after its head.
        journal.record(text(100 << 10));
        assert_eq!(journal.sync(), None);
        for _ in 0..50 {
            journal.record(record::Record::Event(v1::Event { message: "x".repeat(1000), ..v1::Event::default() }));
            assert_eq!(journal.sync(), None);
        }
        assert_eq!(journal.inner.lock().head / 1024, 100);
        assert_eq!(journal.disk_usage().1, 2, "one that has the text, and one that begins with it");
    }
}
