//! Keeping rows on disk: the run directory, its journal, and the thread that turns sealed segments into files.
//!
//! Rows come into memory and, by way of the journal, to disk within a second ([`crate::journal`]). Segments are sealed
//! when they are full or old, or when the journal has no room for their batches any more, and become Parquet files soon
//! after; then the journal need not keep them. They stay in memory, where a query finds them fastest, until memory is
//! needed ([`super::budget`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use probe_common::durable;
use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;

use super::disk_state::{DiskState, DiskWork, FILE_ROWS, WakeSignal, most_file_in_memory};
use super::file_names::{numbers_in, table_directory};
use super::file_writer::write_file;
use super::merge::NEIGHBOURS;
use super::sealed::SealedRows;
use super::segment::Segment;
use super::store::Store;
use crate::journal::{Journal, panicked};

/// A segment that has grown for this long is sealed together with all others of its table, so that one file has them all.
const SEAL_AFTER: Duration = Duration::from_secs(300);
/// The longest time between two looks for old segments.
const TICK: Duration = Duration::from_secs(5);
/// The time between two attempts on a disk that takes nothing.
fn retry() -> Duration {
    if probe_common::fault::retries_at_once() { Duration::from_millis(20) } else { TICK }
}
/// The thread that writes files. It ends when this is dropped, after the file that it is writing.
#[derive(Debug)]
pub struct StoreWriter {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Keeps rows in `directory` from now on, at most `memory` bytes of them in memory and `disk` bytes on disk.
    ///
    /// # Errors
    /// The store keeps its rows already; no thread can be started.
    pub fn start_writer(
        self: &Arc<Self>,
        directory: &Path,
        journal: Arc<Journal>,
        memory: usize,
        disk: u64,
    ) -> Result<StoreWriter> {
        self.limit.store(memory, Ordering::Relaxed);
        self.segment_bytes.store(most_file_in_memory(disk), Ordering::Relaxed);
        let next = self
            .snapshot()
            .iter()
            .flat_map(|table| table.all_files())
            .filter_map(|file| numbers_in(&file.path))
            .map(|(_, last)| last)
            .max();
        let signal = Arc::new(WakeSignal::default());
        let due = Arc::clone(&signal);
        journal.when_due(move || due.wake());
        let state = DiskState {
            directory: directory.to_owned(),
            journal,
            disk_limit: disk,
            number: AtomicU64::new(next.map_or(0, |newest| newest + 1)),
            unfinished: AtomicU64::new(0),
            signal,
            round: Mutex::default(),
            writing: Mutex::default(),
            removed_files: Mutex::default(),
            unmergeable: AtomicBool::new(false),
        };
        self.disk.set(state).map_err(|_| Error::failed("the store keeps its rows already"))?;
        let store = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("probe-keeper".into()).spawn(move || run(&store));
        let thread = thread.map_err(Error::no_thread)?;
        Ok(StoreWriter { store: Arc::clone(self), thread: Some(thread) })
    }

    /// Why rows are in memory only for now.
    pub fn problem(&self) -> Option<Arc<str>> {
        self.disk.get().and_then(DiskState::problem)
    }

    /// Bytes and files of the journal; None where nothing is kept.
    pub(super) fn journal_size(&self) -> Option<(u64, u64)> {
        self.disk.get().map(|disk| disk.journal.disk_usage())
    }

    /// Does everything that is due: writes segments to files (all of them, or those that are old or full), brings memory and
    /// disk within their limits, and removes journal files that are not needed any more.
    pub fn keep_up(&self, all: bool) -> Result<()> {
        let Some(disk) = self.disk.get() else { return Ok(()) };
        let _alone = disk.round.lock().unwrap_or_else(PoisonError::into_inner);
        // A round that panicked may have left these set.
        disk.writing.lock().unwrap_or_else(PoisonError::into_inner).clear();
        disk.unfinished.store(0, Ordering::Relaxed);
        self.trim(disk);
        let flushed = self.flush(disk, all);
        self.unload();
        // Room for the next file, and for the second copy of rows that are merged.
        self.make_room(disk, disk.most_file());
        if flushed.is_ok()
            && !disk.unmergeable.load(Ordering::Relaxed)
            && let Err(error) = self.merge_files(disk, NEIGHBOURS)
        {
            // Nothing is lost: there are just more files than necessary.
            tracing::warn!("small files are not merged any more: {error}");
            disk.unmergeable.store(true, Ordering::Relaxed);
        }
        Self::remove_given_up(disk);
        self.relief.notify_waiters();
        flushed
    }

    /// Merges files without waiting for many of them. The files that were merged are not removed if `leave`. For tests.
    #[doc(hidden)]
    pub fn merge_now(&self, leave: bool) -> Result<()> {
        let Some(disk) = self.disk.get() else { return Ok(()) };
        let _alone = disk.round.lock().unwrap_or_else(PoisonError::into_inner);
        let merged = self.merge_files(disk, 2);
        if !leave {
            Self::remove_given_up(disk);
        }
        merged
    }

    /// Sets the limit of rows in memory (bytes). For tests.
    #[doc(hidden)]
    pub fn limit_memory(&self, memory: usize) {
        self.limit.store(memory, Ordering::Relaxed);
    }

    /// Wakes the thread that writes files, so that it checks whether something is due. For tests.
    #[doc(hidden)]
    pub fn wake_writer(&self) {
        self.disk.get().into_iter().for_each(DiskState::wake);
    }

    /// Keeps files from being written and removed while the guard lives. For tests.
    #[doc(hidden)]
    pub fn hold_still(&self) -> Option<MutexGuard<'_, ()>> {
        self.disk.get().map(|disk| disk.round.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn flush(&self, disk: &DiskState, all: bool) -> Result<()> {
        let pressed = self.memory() > self.soft_limit();
        let overdue = disk.journal.overdue();
        let pins = |segment: &Segment| overdue.is_some_and(|appends| segment.id < appends);
        for (index, table) in self.tables.iter().enumerate() {
            table.seal(|segment| all || pressed || pins(segment) || segment.began.elapsed() >= SEAL_AFTER);
            while let Some(chunk) = self.next_chunk(disk, index) {
                let result = self.flush_chunk(disk, index, chunk);
                disk.writing.lock().unwrap_or_else(PoisonError::into_inner).clear();
                disk.unfinished.store(0, Ordering::Relaxed);
                result?;
                self.trim(disk);
                self.unload();
            }
        }
        Ok(())
    }

    /// The segments of the next file, marked so that they are not evicted.
    fn next_chunk(&self, disk: &DiskState, index: usize) -> Option<Vec<Arc<SealedRows>>> {
        // Eviction holds this lock too: what it has evicted is not in the snapshot that is read here.
        let mut writing = disk.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.tables[index].snapshot();
        let most_bytes = (self.limit() / 8).min(most_file_in_memory(disk.disk_limit));
        let (mut rows, mut bytes) = (0, 0);
        let chunk = snapshot.sealed.iter().take_while(|sealed| {
            let more: usize = sealed.segments().iter().map(|segment| segment.bytes).sum();
            let fits = rows == 0 || rows + sealed.rows <= FILE_ROWS && bytes + more <= most_bytes;
            rows += sealed.rows;
            bytes += more;
            fits
        });
        let chunk: Vec<Arc<SealedRows>> = chunk.cloned().collect();
        writing.extend(chunk.iter().flat_map(|sealed| sealed.segments()).map(|segment| segment.id));
        (!chunk.is_empty()).then_some(chunk)
    }

    fn flush_chunk(&self, disk: &DiskState, index: usize, chunk: Vec<Arc<SealedRows>>) -> Result<()> {
        // The journal has every row before a file has it, so that a batch that comes again after a crash is recognised by
        // its number.
        drop(self.appending.write().unwrap_or_else(PoisonError::into_inner));
        disk.journal.sync();
        let Some(table) = self.declared.get(index) else { return Ok(()) };
        let directory = table_directory(&disk.directory, table);
        durable::create_directory(&directory).map_err(|error| io_error_at(&directory, error))?;
        let name = format!("{:08}.parquet", disk.number.fetch_add(1, Ordering::Relaxed));
        let segments: Vec<Arc<Segment>> = chunk.iter().flat_map(|sealed| sealed.segments()).collect();
        let room = |bytes| {
            disk.unfinished.store(bytes, Ordering::Relaxed);
            self.make_room(disk, 0);
        };
        let file = write_file(&directory, &name, table, &segments, &room)?;
        self.tables[index].flushed(chunk, Arc::new(file));
        Ok(())
    }

    /// Removes journal files whose rows are all in Parquet files.
    fn trim(&self, disk: &DiskState) {
        let appended = self.counters.appends.load(Ordering::Relaxed);
        let oldest = self.tables.iter().filter_map(|table| table.oldest_unflushed()).min();
        disk.journal.trim(oldest.unwrap_or(appended).min(appended));
        self.relief.notify_waiters();
    }
}

impl StoreWriter {
    /// Ends the thread, and writes everything that is in no file yet.
    ///
    /// # Errors
    /// The file system's; the journal then has the rows.
    pub fn finish(mut self) -> Result<()> {
        self.stop();
        self.store.keep_up(true)
    }

    fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if let Some(disk) = self.store.disk.get() {
            disk.signal.lock().stopping = true;
            disk.signal.wake.notify_one();
        }
        // A panic there has been reported by its own thread.
        let _ = thread.join();
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread's loop, which ends with the store.
fn run(store: &Weak<Store>) {
    // The journal's gaps up to which all rows have been written to files.
    let mut repaired_gaps = 0;
    loop {
        let Some(store) = store.upgrade() else { return };
        let Some(disk) = store.disk.get() else { return };
        let WakeSignal { work, wake } = &*disk.signal;
        {
            let work = work.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = |work: &mut DiskWork| !work.wanted && !work.stopping;
            let (mut work, _) = wake.wait_timeout_while(work, TICK, idle).unwrap_or_else(PoisonError::into_inner);
            if work.stopping {
                return;
            }
            work.wanted = false;
        }
        // A journal that took nothing for a while may lack rows that were acknowledged to agents.
        let gaps = disk.journal.gaps();
        let recovered = gaps != repaired_gaps && disk.journal.problem().is_none();
        let result = catch_unwind(AssertUnwindSafe(|| store.keep_up(recovered)));
        let result = result.unwrap_or_else(|panic| Err(Error::failed(panicked(&*panic))));
        let failed = result.is_err();
        if recovered && !failed {
            repaired_gaps = gaps;
        }
        note(disk, result);
        if failed {
            // The next attempt has to wait, however many rows come.
            let until = Instant::now() + retry();
            let work = work.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = wake.wait_timeout_while(work, retry(), |work| !work.stopping && Instant::now() < until);
        }
    }
}

/// Stores and reports what is wrong with the disk.
fn note(disk: &DiskState, result: Result<()>) {
    let mut work = disk.signal.lock();
    let problem = result.err().map(|error| Arc::<str>::from(error.to_string()));
    if let Some(problem) = &problem {
        disk.journal.report_problem(problem);
    }
    work.problem = problem;
}
