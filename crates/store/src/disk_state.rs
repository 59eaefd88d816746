//! What a store has that keeps its rows on disk: the run directory, its journal, and what the thread that writes files
//! and whoever takes rows away have to agree on.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::files::ParquetFile;
use crate::journal::Journal;

/// A file is made of segments that have about so many rows together.
pub(super) const FILE_ROWS: usize = 1 << 20;
/// A file is a 40th of what a run may take on disk, so that little goes at a time, and room for one more is soon made.
const FILES_ON_DISK: u64 = 40;
/// But so many bytes in any case, because a file has to say of each column what it has.
const MIN_FILE_BYTES: u64 = 32 << 10;

/// Files that are no longer the store's, but that a query may be reading.
pub(super) type Graveyard = Vec<Arc<ParquetFile>>;

/// What a store that keeps its rows has.
#[derive(Debug)]
pub(super) struct DiskState {
    pub(super) directory: PathBuf,
    pub(super) journal: Arc<Journal>,
    /// Bytes that the run may take on disk.
    pub(super) disk_limit: u64,
    /// Number of the next file.
    pub(super) number: AtomicU64,
    /// Bytes of the file that is being written, and of what comes next in it.
    pub(super) unfinished: AtomicU64,
    pub(super) signal: Arc<Signal>,
    /// Held by whoever writes files and takes them away.
    pub(super) round: Mutex<()>,
    /// Segments that are being written, which must not be evicted meanwhile.
    pub(super) writing: Mutex<Vec<u64>>,
    pub(super) graveyard: Mutex<Graveyard>,
    /// Merging has failed.
    pub(super) unmergeable: AtomicBool,
}

/// How the thread that writes files is told something.
#[derive(Debug, Default)]
pub(super) struct Signal {
    pub(super) work: Mutex<Work>,
    pub(super) wake: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct Work {
    /// There is something to do.
    pub(super) wanted: bool,
    pub(super) stopping: bool,
    /// Why files can't be written for now.
    pub(super) problem: Option<Arc<str>>,
}

impl Signal {
    pub(super) fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) {
        self.lock().wanted = true;
        self.wake.notify_one();
    }
}

impl DiskState {
    /// Something may be due.
    pub(super) fn wake(&self) {
        self.signal.wake();
    }

    /// Why rows are in memory only, for now.
    pub(super) fn problem(&self) -> Option<Arc<str>> {
        self.signal.lock().problem.clone().or_else(|| self.journal.problem())
    }

    /// No file is made larger than this, about.
    pub(super) fn most_file(&self) -> u64 {
        most_file(self.disk_limit)
    }

    /// What files may take together, so that the journal has room for its share.
    pub(super) fn most_files(&self) -> u64 {
        self.disk_limit.saturating_sub(self.journal.most())
    }
}

fn most_file(disk: u64) -> u64 {
    (disk / FILES_ON_DISK).max(MIN_FILE_BYTES)
}

/// What is in memory before it becomes a file takes more there than in the file.
pub(super) fn most_file_in_memory(disk: u64) -> usize {
    usize::try_from(most_file(disk)).unwrap_or(usize::MAX)
}
