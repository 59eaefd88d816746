//! The thread that has a journal's records on disk, and its files.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use probe_proto::v1::{self, record};

use super::writer::{Durable, Inner, SYNC_BYTES};
use super::{files, frame};

/// Records are on disk after this long at the latest.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// A file that is older is followed by the next one, so that it can go.
const FILE_AGE: Duration = Duration::from_secs(300);
/// Between two attempts on a disk that takes nothing.
const RETRY: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(5) };

impl Inner {
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
#[derive(Debug)]
pub(super) struct Writer {
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
    /// One that has no file yet.
    pub(super) fn new(inner: Arc<Inner>, number: u64, file_bytes: u64) -> Self {
        Self { inner, file: None, path: None, number, file_bytes, opened: Instant::now() }
    }

    /// Writes until the journal ends.
    pub(super) fn run(mut self) {
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
            crate::fault::check(&self.inner.directory)?;
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
    pub(super) fn next_file(&mut self) -> io::Result<()> {
        let path = files::path(&self.inner.directory, self.number);
        crate::fault::check(&path)?;
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
