//! The journal being written: records wait in memory until a thread of its own has them on disk.
//!
//! Nobody who records waits for the disk. What is on disk is told through [`Journal::durable`]; whoever brings more
//! than the disk takes is made to wait by [`Journal::room`]. A disk that takes nothing (full, read-only, broken) does
//! not stop the run: records are then not kept, [`Durable::problem`] says so, and the journal tries again.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use probe_proto::v1::{self, record};
use tokio::sync::watch;

use super::{Ledger, files, frame};
use crate::error::Result;
use crate::paths::named;

/// Records are on disk after this long at the latest.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// So many bytes are not kept waiting.
const SYNC_BYTES: usize = 4 << 20;
/// More than this is not taken from those who can wait.
const MOST_WAITING: usize = 64 << 20;
/// A file that is larger, or older, is followed by the next one, so that it can go.
pub(crate) const FILE_BYTES: u64 = 64 << 20;
const FILE_AGE: Duration = Duration::from_secs(300);
/// Between two attempts on a disk that takes nothing.
const RETRY: Duration = Duration::from_secs(5);

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
struct Inner {
    directory: PathBuf,
    state: Mutex<State>,
    wake: Condvar,
    durable: watch::Sender<Durable>,
    /// That the disk takes nothing has been said.
    said: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Encoded records that are not on disk.
    waiting: Vec<Vec<u8>>,
    bytes: usize,
    /// Since when the oldest of them waits.
    since: Option<Instant>,
    /// Records so far.
    position: u64,
    ledger: Ledger,
    /// Newest append that a record is of.
    appends: u64,
    /// Files that are complete, oldest first, with the newest append in each and their size.
    closed: VecDeque<(PathBuf, u64, u64)>,
    /// Size of the one that is written.
    current: u64,
    hurry: bool,
    stopping: bool,
    /// Stop without writing what waits: what a kill does.
    abandoned: bool,
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
        let mut writer = Writer {
            inner: Arc::clone(&inner),
            file: None,
            path: None,
            number: begin.number,
            file_bytes: begin.file_bytes,
            opened: Instant::now(),
        };
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

    /// Bytes of its files.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.inner.lock();
        state.current + state.closed.iter().map(|(_, _, bytes)| bytes).sum::<u64>()
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, problem: impl fmt::Display) {
        if !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "rows are kept in memory only for now: {problem}; hint: make room on that disk, the collector tries \
                 again by itself, and probe.agents.problem says how it is"
            );
        }
    }

    /// Waits until there is something to do, and takes what waits.
    fn next(&self) -> Taken {
        let mut state = self.lock();
        loop {
            let due = match state.since {
                Some(since) => SYNC_AFTER.saturating_sub(since.elapsed()),
                None => FILE_AGE,
            };
            let ready = state.since.is_some() && (state.hurry || state.bytes >= SYNC_BYTES || due.is_zero());
            if state.stopping || ready {
                break;
            }
            if state.since.is_none() {
                // Nothing waits, so whoever is in a hurry has nothing to wait for.
                state.hurry = false;
            }
            let (again, timeout) = self.wake.wait_timeout(state, due).unwrap_or_else(PoisonError::into_inner);
            state = again;
            if timeout.timed_out() && state.since.is_none() {
                break;
            }
        }
        state.hurry = false;
        state.since = None;
        if state.abandoned {
            state.waiting.clear();
        }
        state.bytes = 0;
        Taken { frames: std::mem::take(&mut state.waiting), position: state.position, last: state.stopping }
    }
}

struct Taken {
    frames: Vec<Vec<u8>>,
    position: u64,
    last: bool,
}

/// The thread's own.
struct Writer {
    inner: Arc<Inner>,
    /// None while the disk takes nothing.
    file: Option<File>,
    /// The newest file, also one that takes nothing any more.
    path: Option<PathBuf>,
    number: u64,
    file_bytes: u64,
    opened: Instant,
}

impl Writer {
    fn run(mut self) {
        let mut failed: Option<Instant> = None;
        loop {
            let taken = self.inner.next();
            let retry = failed.is_none_or(|since| since.elapsed() >= RETRY);
            let result = match (&self.file, retry) {
                (None, false) => None,
                (None, true) => Some(self.next_file()),
                (Some(_), _) => Some(self.write(&taken.frames)),
            };
            let problem = match result {
                None => self.inner.durable.borrow().problem.clone(),
                Some(Ok(())) => None,
                Some(Err(error)) => {
                    let directory = self.inner.directory.display();
                    self.inner.say(format_args!("the journal in {directory} takes nothing ({error})"));
                    self.file = None;
                    failed = Some(Instant::now());
                    Some(Arc::from(error.to_string()))
                }
            };
            if problem.is_none() {
                failed = None;
            }
            self.inner.durable.send_if_modified(|durable| {
                let changed = durable.position != taken.position || durable.problem != problem;
                *durable = Durable { position: taken.position, problem };
                changed
            });
            if taken.last {
                return;
            }
        }
    }

    /// Appends to the file, or begins the next one first.
    fn write(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        if let Some(file) = &mut self.file
            && !frames.is_empty()
        {
            write_all(file, frames)?;
            file.sync_data()?;
            self.inner.lock().current += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        }
        let current = self.inner.lock().current;
        if current > self.file_bytes || (self.opened.elapsed() > FILE_AGE && !frames.is_empty()) {
            self.next_file()?;
        }
        Ok(())
    }

    /// Begins a file with the ledger as it is now. What waits goes into the file before, so that a file's ledger sums
    /// up exactly what the files before it say.
    fn next_file(&mut self) -> io::Result<()> {
        let path = files::path(&self.inner.directory, self.number);
        let (frames, appends, ledger) = {
            let mut state = self.inner.lock();
            state.bytes = 0;
            (std::mem::take(&mut state.waiting), state.appends, state.ledger.to_message())
        };
        if let Some(file) = &mut self.file {
            write_all(file, &frames)?;
            file.sync_data()?;
        }
        drop(frames);
        let head = frame::encode(&v1::Record { record: Some(record::Record::Ledger(ledger)) });
        // A file that is there is one that an attempt on a full disk has left.
        let mut file = File::create(&path)?;
        file.write_all(frame::MAGIC)?;
        file.write_all(&head)?;
        file.sync_all()?;
        File::open(&self.inner.directory)?.sync_all()?;
        let mut state = self.inner.lock();
        if let Some(previous) = self.path.replace(path) {
            let bytes = state.current;
            state.closed.push_back((previous, appends, bytes));
        }
        state.current = (frame::MAGIC.len() + head.len()) as u64;
        self.file = Some(file);
        self.number += 1;
        self.opened = Instant::now();
        Ok(())
    }
}

fn write_all(file: &mut File, frames: &[Vec<u8>]) -> io::Result<()> {
    // Small records are many: they go together.
    let mut together = io::BufWriter::with_capacity(1 << 18, file);
    for frame in frames {
        together.write_all(frame)?;
    }
    together.flush()
}
