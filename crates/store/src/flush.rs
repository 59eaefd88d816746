//! Where rows are kept on disk: the run directory, its journal, and the thread that turns sealed segments into files.
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
use probe_common::paths::named;

use super::disk_state::{DiskState, FILE_ROWS, Signal, Work, most_file_in_memory};
use super::file_names::{numbers_in, table_directory};
use super::file_writer::write_file;
use super::merge::NEIGHBOURS;
use super::sealed::Sealed;
use super::segment::Segment;
use super::store::Store;
use crate::journal::{Journal, panicked};

/// A segment that has grown for so long is sealed, and all of its table with it, so that one file has them all.
const SEAL_AFTER: Duration = Duration::from_secs(300);
/// How often is looked for something old.
const TICK: Duration = Duration::from_secs(5);
/// Between two attempts on a disk that takes nothing.
fn retry() -> Duration {
    if probe_common::fault::retries_at_once() { Duration::from_millis(20) } else { TICK }
}
/// The thread that writes files. Dropped, it ends after the file that it writes.
#[derive(Debug)]
pub struct StoreWriter {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Keeps rows in `directory` from now on, at most `memory` bytes of them in memory and `disk` bytes on disk.
    ///
    /// # Errors
    /// It keeps them already; no thread can be started.
    pub fn keep(
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
        let signal = Arc::new(Signal::default());
        let due = Arc::clone(&signal);
        journal.when_due(move || due.wake());
        let kept = DiskState {
            directory: directory.to_owned(),
            journal,
            disk_limit: disk,
            number: AtomicU64::new(next.map_or(0, |newest| newest + 1)),
            unfinished: AtomicU64::new(0),
            signal,
            round: Mutex::default(),
            writing: Mutex::default(),
            graveyard: Mutex::default(),
            unmergeable: AtomicBool::new(false),
        };
        self.kept.set(kept).map_err(|_| Error::failed("the store keeps its rows already"))?;
        let store = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("probe-keeper".into()).spawn(move || run(&store));
        let thread = thread.map_err(Error::no_thread)?;
        Ok(StoreWriter { store: Arc::clone(self), thread: Some(thread) })
    }

    /// Why rows are in memory only, for now.
    pub fn problem(&self) -> Option<Arc<str>> {
        self.kept.get().and_then(DiskState::problem)
    }

    /// Bytes and files of the journal; None where nothing is kept.
    pub(super) fn journal_size(&self) -> Option<(u64, u64)> {
        self.kept.get().map(|kept| kept.journal.size())
    }

    /// Everything that is due: segments become files (all of them, or those that are old or full), memory and disk are
    /// brought within their limits, and journal files that nobody needs go.
    pub fn keep_up(&self, all: bool) -> Result<()> {
        let Some(kept) = self.kept.get() else { return Ok(()) };
        let _alone = kept.round.lock().unwrap_or_else(PoisonError::into_inner);
        // A round before that did not come to its end may have left them.
        kept.writing.lock().unwrap_or_else(PoisonError::into_inner).clear();
        kept.unfinished.store(0, Ordering::Relaxed);
        self.trim(kept);
        let flushed = self.flush(kept, all);
        self.unload();
        // For the next file, and for the second copy of what is merged.
        self.make_room(kept, kept.most_file());
        if flushed.is_ok()
            && !kept.unmergeable.load(Ordering::Relaxed)
            && let Err(error) = self.merge_files(kept, NEIGHBOURS)
        {
            // Nothing is lost: there are more files than need be.
            tracing::warn!("small files are not merged any more: {error}");
            kept.unmergeable.store(true, Ordering::Relaxed);
        }
        Self::bury(kept);
        self.relief.notify_waiters();
        flushed
    }

    /// Merges files without waiting for many of them; those that were merged stay where they are if `leave`. For tests.
    #[doc(hidden)]
    pub fn merge_now(&self, leave: bool) -> Result<()> {
        let Some(kept) = self.kept.get() else { return Ok(()) };
        let _alone = kept.round.lock().unwrap_or_else(PoisonError::into_inner);
        let merged = self.merge_files(kept, 2);
        if !leave {
            Self::bury(kept);
        }
        merged
    }

    /// Rows may take only so much memory from now on. For tests.
    #[doc(hidden)]
    pub fn limit_memory(&self, memory: usize) {
        self.limit.store(memory, Ordering::Relaxed);
    }

    /// The thread that writes files looks whether something is due. For tests.
    #[doc(hidden)]
    pub fn look(&self) {
        self.kept.get().into_iter().for_each(DiskState::wake);
    }

    /// Nothing is written or taken away while the guard lives. For tests.
    #[doc(hidden)]
    pub fn hold_still(&self) -> Option<MutexGuard<'_, ()>> {
        self.kept.get().map(|kept| kept.round.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn flush(&self, kept: &DiskState, all: bool) -> Result<()> {
        let pressed = self.memory() > self.soft_limit();
        let overdue = kept.journal.overdue();
        let pins = |segment: &Segment| overdue.is_some_and(|appends| segment.id < appends);
        for (place, table) in self.tables.iter().enumerate() {
            table.seal(|segment| all || pressed || pins(segment) || segment.began.elapsed() >= SEAL_AFTER);
            while let Some(chunk) = self.next_chunk(kept, place) {
                let result = self.flush_chunk(kept, place, chunk);
                kept.writing.lock().unwrap_or_else(PoisonError::into_inner).clear();
                kept.unfinished.store(0, Ordering::Relaxed);
                result?;
                self.trim(kept);
                self.unload();
            }
        }
        Ok(())
    }

    /// What the next file is made of, marked so that it stays.
    fn next_chunk(&self, kept: &DiskState, place: usize) -> Option<Vec<Arc<Sealed>>> {
        // Eviction takes this too: what it has taken is not in the snapshot that is read here.
        let mut writing = kept.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.tables[place].snapshot();
        let most_bytes = (self.limit() / 8).min(most_file_in_memory(kept.disk_limit));
        let (mut rows, mut bytes) = (0, 0);
        let chunk = snapshot.sealed.iter().take_while(|sealed| {
            let more: usize = sealed.segments().iter().map(|segment| segment.bytes).sum();
            let fits = rows == 0 || rows + sealed.rows <= FILE_ROWS && bytes + more <= most_bytes;
            rows += sealed.rows;
            bytes += more;
            fits
        });
        let chunk: Vec<Arc<Sealed>> = chunk.cloned().collect();
        writing.extend(chunk.iter().flat_map(|sealed| sealed.segments()).map(|segment| segment.id));
        (!chunk.is_empty()).then_some(chunk)
    }

    fn flush_chunk(&self, kept: &DiskState, place: usize, chunk: Vec<Arc<Sealed>>) -> Result<()> {
        // No file has a row that the journal has not: a batch that comes again after a crash is known by its number.
        drop(self.taking.write().unwrap_or_else(PoisonError::into_inner));
        kept.journal.sync();
        let Some(table) = self.declared.get(place) else { return Ok(()) };
        let directory = table_directory(&kept.directory, table);
        durable::create_directory(&directory).map_err(|error| named(&directory, error))?;
        let name = format!("{:08}.parquet", kept.number.fetch_add(1, Ordering::Relaxed));
        let segments: Vec<Arc<Segment>> = chunk.iter().flat_map(|sealed| sealed.segments()).collect();
        let room = |bytes| {
            kept.unfinished.store(bytes, Ordering::Relaxed);
            self.make_room(kept, 0);
        };
        let file = write_file(&directory, &name, table, &segments, &room)?;
        self.tables[place].flushed(chunk, Arc::new(file));
        Ok(())
    }

    /// Journal files whose rows are all in Parquet files go.
    fn trim(&self, kept: &DiskState) {
        let appended = self.counters.appends.load(Ordering::Relaxed);
        let oldest = self.tables.iter().filter_map(|table| table.oldest_unflushed()).min();
        kept.journal.trim(oldest.unwrap_or(appended).min(appended));
        self.relief.notify_waiters();
    }
}

impl StoreWriter {
    /// Writes everything that is in no file yet.
    ///
    /// # Errors
    /// The file system's; the journal has the rows then.
    pub fn finish(mut self) -> Result<()> {
        self.stop();
        self.store.keep_up(true)
    }

    fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if let Some(kept) = self.store.kept.get() {
            kept.signal.lock().stopping = true;
            kept.signal.wake.notify_one();
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

/// The thread's life, as long as the store's.
fn run(store: &Weak<Store>) {
    // How often the journal had taken nothing when all rows were in files last.
    let mut made_good = 0;
    loop {
        let Some(store) = store.upgrade() else { return };
        let Some(kept) = store.kept.get() else { return };
        let Signal { work, wake } = &*kept.signal;
        {
            let work = work.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = |work: &mut Work| !work.wanted && !work.stopping;
            let (mut work, _) = wake.wait_timeout_while(work, TICK, idle).unwrap_or_else(PoisonError::into_inner);
            if work.stopping {
                return;
            }
            work.wanted = false;
        }
        // A journal that took nothing for a while may have missed rows that agents were told are kept.
        let gaps = kept.journal.gaps();
        let recovered = gaps != made_good && kept.journal.problem().is_none();
        let result = catch_unwind(AssertUnwindSafe(|| store.keep_up(recovered)));
        let result = result.unwrap_or_else(|panic| Err(Error::failed(panicked(&*panic))));
        let failed = result.is_err();
        if recovered && !failed {
            made_good = gaps;
        }
        note(kept, result);
        if failed {
            // Not again at once, however much comes.
            let until = Instant::now() + retry();
            let work = work.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = wake.wait_timeout_while(work, retry(), |work| !work.stopping && Instant::now() < until);
        }
    }
}

/// Keeps what is wrong with the disk, and says it.
fn note(kept: &DiskState, result: Result<()>) {
    let mut work = kept.signal.lock();
    let problem = result.err().map(|error| Arc::<str>::from(error.to_string()));
    if let Some(problem) = &problem {
        kept.journal.say(problem);
    }
    work.problem = problem;
}
