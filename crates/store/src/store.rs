//! [`Store`]: the tables of a run, with as many rows in memory as its limits allow.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::SystemTime;

use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use probe_proto::table::Table;
use probe_proto::tables::TABLES;
use probe_proto::v1::TableSchema;
use tokio::sync::Notify;

use super::declared::{self, DeclaredTables};
use super::disk_state::{DiskState, most_file_in_memory};
use super::file_names::END_FILE;
use super::files::ParquetFile;
use super::found_files;
use super::identity::ProcessIdentity;
use super::table::{StoreCounters, TableSnapshot, TableStore};

/// Strings of connections may take the memory limit divided by this, and `MIN_TEXT_BYTES` in any case.
const TEXT_IN_LIMIT: usize = 4;
const MIN_TEXT_BYTES: usize = 1 << 20;

/// Files of a run directory that are not part of the store.
#[derive(Debug, Default)]
pub struct LeftOverFiles {
    /// Files that can't be read, and why.
    pub damaged: Vec<(PathBuf, Error)>,
    /// Files that were never finished, and those of an end that was not finished. Their rows are in the journal.
    pub unfinished: Vec<PathBuf>,
}

impl LeftOverFiles {
    /// Renames damaged files and removes unfinished ones.
    ///
    /// # Errors
    /// The file system's.
    pub fn set_aside(&self) -> Result<()> {
        for (path, _) in &self.damaged {
            let aside = path.with_extension("parquet.damaged");
            fs::rename(path, aside).map_err(|error| io_error_at(path, error))?;
        }
        for path in &self.unfinished {
            fs::remove_file(path).map_err(|error| io_error_at(path, error))?;
        }
        Ok(())
    }
}

/// Rows of one process and table that were evicted.
#[derive(Debug, Clone)]
pub struct EvictedRows {
    pub identity: Arc<ProcessIdentity>,
    pub table: &'static Table,
    /// Number of rows evicted so far.
    pub rows: u64,
    /// When the last of them was evicted.
    pub last: SystemTime,
}

/// All evictions so far, by process and index of the table.
pub(super) type EvictionTotals = Mutex<HashMap<(Arc<ProcessIdentity>, usize), (u64, SystemTime)>>;

/// All tables of a run, or of all runs that a collector serves.
#[derive(Debug)]
pub struct Store {
    /// The tables in the order of [`Store::tables`], followed by empty slots for further declared ones.
    pub(super) tables: Vec<TableStore>,
    pub(super) declared: DeclaredTables,
    pub(super) limit: AtomicUsize,
    pub(super) counters: StoreCounters,
    pub(super) losses: EvictionTotals,
    /// The largest size of a segment, so that no file of one segment is too large for the disk.
    pub(super) segment_bytes: AtomicUsize,
    /// State of a store that keeps its rows on disk, once it does.
    pub(super) disk: OnceLock<DiskState>,
    /// Notified when memory was freed.
    pub(super) relief: Notify,
    /// Held for reading during an append, until the journal has the batch too.
    pub(super) appending: RwLock<()>,
}

impl Store {
    /// An empty store whose rows may take `memory_limit` bytes.
    pub fn new(memory_limit: usize) -> Arc<Self> {
        Self::of(Vec::new(), DeclaredTables::default(), memory_limit)
    }

    /// Opens a run directory. Rows stay in their files; a table without files is empty.
    ///
    /// # Errors
    /// There is no such directory; a file in it is no Parquet file, or has a column of another type than its table.
    pub fn open(directory: &Path) -> Result<Arc<Self>> {
        let found = found_files::find(directory)?;
        match found.damaged.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(Self::of(found.tables, DeclaredTables::of(found.declared), usize::MAX)),
        }
    }

    /// Opens the directory of a run whose collector died. Files that can't be read are left out, and returned with those that
    /// were never finished. Memory is unlimited until the store keeps its rows (`flush`), on `disk` bytes.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn open_after_crash(directory: &Path, disk: u64) -> Result<(Arc<Self>, LeftOverFiles)> {
        let mut found = found_files::find(directory)?;
        // Files of the run's end are of an end that was not finished.
        for files in &mut found.tables {
            let ends = files.extract_if(.., |file| file.path.file_name().is_some_and(|name| name == END_FILE));
            found.unfinished.extend(ends.map(|file| file.path.clone()));
        }
        let store = Self::of(found.tables, DeclaredTables::of(found.declared), usize::MAX);
        store.segment_bytes.store(most_file_in_memory(disk), Ordering::Relaxed);
        Ok((store, LeftOverFiles { damaged: found.damaged, unfinished: found.unfinished }))
    }

    fn of(files: Vec<Vec<Arc<ParquetFile>>>, declared: DeclaredTables, limit: usize) -> Arc<Self> {
        let mut tables: Vec<TableStore> = files.into_iter().map(TableStore::of_files).collect();
        tables.resize_with(TABLES.len() + declared::TABLE_SLOTS, TableStore::default);
        Arc::new(Self {
            tables,
            declared,
            limit: AtomicUsize::new(limit),
            counters: StoreCounters::default(),
            losses: EvictionTotals::default(),
            segment_bytes: AtomicUsize::new(usize::MAX),
            disk: OnceLock::new(),
            relief: Notify::new(),
            appending: RwLock::default(),
        })
    }

    /// Hold the guard from before an append until the journal has the batch: a segment is written to a file only when the
    /// journal has all of it.
    pub fn begin_append(&self) -> RwLockReadGuard<'_, ()> {
        self.appending.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that rows in memory may take.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes that all rows in memory and their text take. Text counts up to its share, so that more of it evicts no rows.
    pub fn memory(&self) -> usize {
        self.counters.memory.load(Ordering::Relaxed) + self.text_bytes().min(self.most_text())
    }

    /// Bytes that strings of connections take in memory.
    pub fn text_bytes(&self) -> usize {
        self.counters.texts.load(Ordering::Relaxed)
    }

    fn most_text(&self) -> usize {
        self.limit() / TEXT_IN_LIMIT
    }

    /// Whether connections may add `bytes` of strings.
    pub fn has_room_for_text(&self, bytes: usize) -> bool {
        self.text_bytes() + bytes <= self.most_text().max(MIN_TEXT_BYTES)
    }

    /// Number of batches appended so far.
    pub fn appends(&self) -> u64 {
        self.counters.appends.load(Ordering::Relaxed)
    }

    /// All tables: the built-in ones, and then those that the program declared.
    pub fn tables(&self) -> Vec<&'static Table> {
        self.declared.all()
    }

    /// Adds a table that the program declares. If the store has the same one already, this returns it.
    ///
    /// # Errors
    /// In words: the declaration is not allowed, it differs from the table of this name, or there are too many tables.
    pub fn declare(&self, schema: &TableSchema) -> std::result::Result<&'static Table, String> {
        self.declared.declare(schema)
    }

    /// Snapshots of all tables, in the order of [`Store::tables`], followed by empty ones.
    pub fn snapshot(&self) -> Vec<Arc<TableSnapshot>> {
        self.tables.iter().map(TableStore::snapshot).collect()
    }
}
