//! The state of a store that keeps its rows on disk: the run directory, its journal, and what the thread that writes files
//! shares with evictions.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::files::ParquetFile;
use crate::journal::Journal;

/// Most rows of a file: those of all its segments together.
pub(super) const FILE_ROWS: usize = 1 << 20;
/// A file is a 40th of what a run may take on disk, so that an eviction loses few rows, and room for one more is soon made.
const FILES_ON_DISK: u64 = 40;
/// The smallest limit of a file (bytes), because the description of its columns takes room too.
const MIN_FILE_BYTES: u64 = 32 << 10;

/// Files that the store has given up and a query may still be reading.
pub(super) type RemovedFiles = Vec<Arc<ParquetFile>>;

/// The state of a store that keeps its rows on disk.
#[derive(Debug)]
pub(super) struct DiskState {
    pub(super) directory: PathBuf,
    pub(super) journal: Arc<Journal>,
    /// Bytes that the run may take on disk.
    pub(super) disk_limit: u64,
    /// Number of the next file.
    pub(super) number: AtomicU64,
    /// Bytes of the file that is being written, and of what is about to be added to it.
    pub(super) unfinished: AtomicU64,
    pub(super) signal: Arc<WakeSignal>,
    /// Held while files are written and removed.
    pub(super) round: Mutex<()>,
    /// Segments that are being written, which must not be evicted meanwhile.
    pub(super) writing: Mutex<Vec<u64>>,
    pub(super) removed_files: Mutex<RemovedFiles>,
    /// Merging has failed.
    pub(super) unmergeable: AtomicBool,
}

/// Wakes the thread that writes files.
#[derive(Debug, Default)]
pub(super) struct WakeSignal {
    pub(super) work: Mutex<DiskWork>,
    pub(super) wake: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct DiskWork {
    /// Whether there is something to do.
    pub(super) wanted: bool,
    pub(super) stopping: bool,
    /// Why files can't be written for now.
    pub(super) problem: Option<Arc<str>>,
}

impl WakeSignal {
    pub(super) fn lock(&self) -> MutexGuard<'_, DiskWork> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) {
        self.lock().wanted = true;
        self.wake.notify_one();
    }
}

impl DiskState {
    /// Wakes the thread that writes files: something may be due.
    pub(super) fn wake(&self) {
        self.signal.wake();
    }

    /// Why rows are in memory only for now.
    pub(super) fn problem(&self) -> Option<Arc<str>> {
        self.signal.lock().problem.clone().or_else(|| self.journal.problem())
    }

    /// About the size (bytes) past which no file is made.
    pub(super) fn most_file(&self) -> u64 {
        most_file(self.disk_limit)
    }

    /// Bytes that files may take together, so that the journal has room for its share.
    pub(super) fn most_files(&self) -> u64 {
        self.disk_limit.saturating_sub(self.journal.disk_limit())
    }
}

fn most_file(disk: u64) -> u64 {
    (disk / FILES_ON_DISK).max(MIN_FILE_BYTES)
}

/// The limit of a file (bytes), for segments in memory: they take more there than in the file.
pub(super) fn most_file_in_memory(disk: u64) -> usize {
    usize::try_from(most_file(disk)).unwrap_or(usize::MAX)
}
