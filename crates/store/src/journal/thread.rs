//! The thread that writes a journal's records to disk, and its files.

use std::fs::File;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use probe_common::durable;
use probe_proto::v1::{self, record};

use super::state::{JournalShared, SYNC_BYTES, SyncedPosition};
use super::{files, frame, reserve};

/// The longest time before a record is on disk.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// The age at which a file is complete, so that it can be removed.
const FILE_AGE: Duration = Duration::from_secs(300);
/// The time between two attempts on a disk that takes nothing.
fn retry() -> Duration {
    if probe_common::fault::retries_at_once() { Duration::ZERO } else { Duration::from_secs(5) }
}

impl JournalShared {
    /// Waits until there is something to do, and takes the records that wait. Where the disk takes nothing (`failed`), there is
    /// something to do soon.
    fn next(&self, failed: bool) -> TakenRecords {
        let mut state = self.lock();
        loop {
            let due = match state.since {
                Some(since) => SYNC_AFTER.saturating_sub(since.elapsed()),
                None if failed => retry().max(Duration::from_millis(1)),
                None => FILE_AGE,
            };
            let ready = state.since.is_some() && (state.sync_now || state.bytes >= SYNC_BYTES || due.is_zero());
            if state.stopping || ready {
                break;
            }
            if state.since.is_none() {
                // No record waits, so there is nothing to hurry for.
                state.sync_now = false;
            }
            let (again, timeout) = self.wake.wait_timeout(state, due).unwrap_or_else(PoisonError::into_inner);
            state = again;
            if timeout.timed_out() && state.since.is_none() {
                break;
            }
        }
        state.sync_now = false;
        state.since = None;
        if state.abandoned {
            state.waiting.clear();
        }
        state.in_flight = std::mem::take(&mut state.bytes) as u64;
        TakenRecords { frames: std::mem::take(&mut state.waiting), position: state.position, last: state.stopping }
    }
}

struct TakenRecords {
    frames: Vec<Vec<u8>>,
    position: u64,
    last: bool,
}

/// The thread's own state.
#[derive(Debug)]
pub(super) struct JournalWriter {
    inner: Arc<JournalShared>,
    /// None while the disk takes nothing.
    file: Option<File>,
    /// The newest file, also one that takes nothing any more.
    path: Option<PathBuf>,
    number: u64,
    opened: Instant,
}

impl JournalWriter {
    /// A writer that has no file yet.
    pub(super) fn new(inner: Arc<JournalShared>, number: u64) -> Self {
        Self { inner, file: None, path: None, number, opened: Instant::now() }
    }

    /// Writes until the journal ends.
    pub(super) fn run(mut self) {
        let mut failed: Option<Instant> = None;
        loop {
            let taken = self.inner.next(failed.is_some());
            let retry = failed.is_none_or(|since| since.elapsed() >= retry());
            let attempt = catch_unwind(AssertUnwindSafe(|| match (&self.file, retry) {
                (None, false) => None,
                (None, true) => Some(self.next_file(true)),
                (Some(_), _) => Some(self.write(&taken.frames)),
            }));
            self.inner.lock().in_flight = 0;
            // A file whose write panicked gets no more records: they go to the next one.
            let result = attempt.unwrap_or_else(|panic| Some(Err(io::Error::other(panicked(&*panic)))));
            let problem = match result {
                None => self.inner.durable.borrow().problem.clone(),
                Some(Ok(())) => None,
                Some(Err(error)) => {
                    let directory = self.inner.directory.display();
                    self.inner.report_problem(format_args!("the journal in {directory} takes nothing ({error})"));
                    self.give_up();
                    failed = Some(Instant::now());
                    self.inner.gaps.fetch_add(1, Ordering::AcqRel);
                    Some(Arc::from(error.to_string()))
                }
            };
            let recovered = problem.is_none() && failed.is_some();
            if recovered {
                failed = None;
            }
            self.inner.durable.send_if_modified(|durable| {
                let changed = durable.position != taken.position || durable.problem != problem;
                *durable = SyncedPosition { position: taken.position, problem };
                changed
            });
            if taken.last {
                if failed.is_some() {
                    self.write_last_checkpoint();
                }
                return;
            }
            // Rows that the journal lacks are written to files.
            if recovered || self.inner.overdue().is_some() {
                self.inner.due.get().into_iter().for_each(|due| (due.0)());
            }
        }
    }

    /// Appends to the file, and begins the next one where this one is complete.
    fn write(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        if let Some(file) = &mut self.file
            && !frames.is_empty()
        {
            probe_common::fault::check(&self.inner.directory)?;
            let more = bytes(frames);
            self.inner.take_share(more)?;
            append(file, frames)?;
            file.sync_data()?;
            self.inner.lock().written(more);
        }
        let (behind, head, on_disk) = {
            let state = self.inner.lock();
            (state.current - state.head, state.head, state.on_disk())
        };
        let share = self.inner.share;
        let due = behind > share.file_bytes(head) || (self.opened.elapsed() > FILE_AGE && !frames.is_empty());
        // The next head takes about as much as this one; where it has no room yet, the file goes on.
        if due && on_disk + head <= share.limit_bytes(head) {
            self.next_file(true)?;
        }
        Ok(())
    }

    /// Writes how far the run came, in the room that was kept for this. The records that wait find none.
    fn write_last_checkpoint(&mut self) {
        reserve::release(&self.inner.directory);
        self.file = None;
        if let Err(error) = self.next_file(false) {
            tracing::warn!("what was recorded last is not counted: {error}");
        }
    }

    /// Completes a file that takes nothing any more. It is removed when its rows are in Parquet files.
    fn give_up(&mut self) {
        self.file = None;
        let mut state = self.inner.lock();
        if let Some(path) = self.path.take() {
            let (appends, bytes) = (state.appends, std::mem::take(&mut state.current));
            state.closed.push_back((path, appends, bytes));
        }
    }

    /// Begins a file with the checkpoint as it is now. Records that wait are written to the previous file, so that a file's
    /// checkpoint sums up exactly the files before it. All of it has to be within the journal's share of the disk, except for
    /// the first file.
    pub(super) fn next_file(&mut self, within_share: bool) -> io::Result<()> {
        let path = files::path(&self.inner.directory, self.number);
        probe_common::fault::check(&path)?;
        let (frames, appends, checkpoint) = {
            let mut state = self.inner.lock();
            state.in_flight += std::mem::take(&mut state.bytes) as u64;
            (std::mem::take(&mut state.waiting), state.appends, state.checkpoint.clone())
        };
        if let Some(file) = &mut self.file {
            let more = bytes(&frames);
            self.inner.take_share(more)?;
            append(file, &frames)?;
            file.sync_data()?;
            self.inner.lock().written(more);
        }
        drop(frames);
        let connections = checkpoint.connection_bytes();
        // Encoding takes long, so it is done without the lock.
        let head = v1::Record { record: Some(record::Record::Checkpoint(checkpoint.to_message())) };
        frame::check_length(&head)?;
        let head = frame::encode(&head);
        let length = (frame::MAGIC.len() + head.len()) as u64;
        if within_share {
            self.inner.take_share_for_head(length)?;
        }
        // An existing file was left by an attempt on a full disk.
        let mut file = File::create(&path)?;
        file.write_all(frame::MAGIC)?;
        file.write_all(&head)?;
        file.sync_all()?;
        durable::sync_names(&self.inner.directory)?;
        let mut state = self.inner.lock();
        if let Some(previous) = self.path.replace(path) {
            let bytes = state.current;
            state.closed.push_back((previous, appends, bytes));
        }
        (state.head, state.current) = (length, length);
        state.head_connections = connections;
        self.file = Some(file);
        self.number += 1;
        self.opened = Instant::now();
        Ok(())
    }
}

impl JournalShared {
    /// An error where `more` bytes and the next head would exceed the journal's share of the disk.
    fn take_share(&self, more: u64) -> io::Result<()> {
        let state = self.lock();
        self.within_share(state.on_disk() + more + state.head, state.head)
    }

    /// An error where a new head would exceed the journal's share of the disk. A single complete file does not count: it can
    /// be removed only when there is a newer one, which it must not prevent.
    fn take_share_for_head(&self, head: u64) -> io::Result<()> {
        let state = self.lock();
        let is_last = state.current == 0 && state.closed.len() == 1;
        let others = if is_last { 0 } else { state.on_disk() };
        self.within_share(others + head, state.head.max(head))
    }

    fn within_share(&self, bytes: u64, head: u64) -> io::Result<()> {
        let most = self.share.limit_bytes(head);
        if bytes <= most {
            return Ok(());
        }
        let message = format!("its share of the run's disk, {most} bytes of {}, is taken", self.share.disk);
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, message))
    }

    /// All appends below this number are overdue; see [`super::Journal::overdue`].
    pub(super) fn overdue(&self) -> Option<u64> {
        let state = self.lock();
        let appends = state.closed.back().map(|(_, appends, _)| *appends);
        appends.filter(|_| state.complete() > self.share.complete_bytes(state.head))
    }
}

fn bytes(frames: &[Vec<u8>]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

/// The message of a panic of a thread.
pub fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    format!("its thread panicked: {}", probe_common::panics::message_of(panic))
}

/// Adds frames to a file. Where the disk takes only a part of them, nothing is left of a frame that is not whole.
fn append(file: &mut File, frames: &[Vec<u8>]) -> io::Result<()> {
    let begin = file.metadata()?.len();
    let written = write_all(file, frames);
    if written.is_err() {
        let length = file.metadata()?.len();
        let ends = frames.iter().scan(begin, |end, frame| {
            *end += frame.len() as u64;
            Some(*end)
        });
        file.set_len(ends.take_while(|end| *end <= length).last().unwrap_or(begin))?;
    }
    written
}

fn write_all(file: &mut File, frames: &[Vec<u8>]) -> io::Result<()> {
    // Small records are written together, because there are many.
    let mut together = io::BufWriter::with_capacity(1 << 18, file);
    for frame in frames {
        together.write_all(frame)?;
    }
    together.flush()
}
