//! [`Store`]: the tables of a run, as many rows of them in memory as its limits let.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::SystemTime;

use probe_common::error::{Error, Result};
use probe_common::paths::named;
use probe_proto::table::Table;
use probe_proto::tables::TABLES;
use probe_proto::v1::TableSchema;
use tokio::sync::Notify;

use super::declared::{self, Declared};
use super::disk_state::{DiskState, most_file_in_memory};
use super::file_names::END_FILE;
use super::files::ParquetFile;
use super::found_files;
use super::identity::Identity;
use super::table::{Counters, TableSnapshot, TableStore};

/// Strings of connections may take this part of it, and so many bytes in any case.
const TEXT_IN_LIMIT: usize = 4;
const MIN_TEXT_BYTES: usize = 1 << 20;

/// Files of a run directory that hold no rows for anybody.
#[derive(Debug, Default)]
pub struct LeftOver {
    /// Files that can't be read, and why.
    pub damaged: Vec<(PathBuf, Error)>,
    /// Files that nobody has finished, and those of an end that was not finished. Their rows are in the journal.
    pub unfinished: Vec<PathBuf>,
}

impl LeftOver {
    /// Takes them out of the way: damaged ones are renamed, unfinished ones go.
    ///
    /// # Errors
    /// The file system's.
    pub fn set_aside(&self) -> Result<()> {
        for (path, _) in &self.damaged {
            let aside = path.with_extension("parquet.damaged");
            fs::rename(path, aside).map_err(|error| named(path, error))?;
        }
        for path in &self.unfinished {
            fs::remove_file(path).map_err(|error| named(path, error))?;
        }
        Ok(())
    }
}

/// Rows of one process and table that were evicted.
#[derive(Debug, Clone)]
pub struct Evicted {
    /// The process.
    pub identity: Arc<Identity>,
    /// The table.
    pub table: &'static Table,
    /// How many so far.
    pub rows: u64,
    /// When last.
    pub last: SystemTime,
}

/// All evictions so far, by process and place of the table.
pub(super) type Losses = Mutex<HashMap<(Arc<Identity>, usize), (u64, SystemTime)>>;

/// All tables of a run, or of all runs that a collector serves.
#[derive(Debug)]
pub struct Store {
    /// As [`Store::tables`], and behind them the empty places of those that may come.
    pub(super) tables: Vec<TableStore>,
    pub(super) declared: Declared,
    pub(super) limit: AtomicUsize,
    pub(super) counters: Counters,
    pub(super) losses: Losses,
    /// No segment takes more, so that no file of one segment is too large for the disk.
    pub(super) segment_bytes: AtomicUsize,
    /// Where rows are kept on disk, once that is known.
    pub(super) kept: OnceLock<DiskState>,
    /// Memory was made free.
    pub(super) relief: Notify,
    /// Held to read by whoever appends, until the journal has it too.
    pub(super) taking: RwLock<()>,
}

impl Store {
    /// An empty one whose rows may take `memory_limit` bytes.
    pub fn new(memory_limit: usize) -> Arc<Self> {
        Self::of(Vec::new(), Declared::default(), memory_limit)
    }

    /// A run directory. Rows stay in their files; a table without files is empty.
    ///
    /// # Errors
    /// There is no such directory, a file of it is no Parquet file or has a column of another type than its table.
    pub fn open(directory: &Path) -> Result<Arc<Self>> {
        let found = found_files::find(directory)?;
        match found.damaged.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(Self::of(found.tables, Declared::of(found.declared), usize::MAX)),
        }
    }

    /// The same for a run whose collector died. Files that can't be read are left out, and told of with those that
    /// nobody has finished. Its memory is unlimited until it keeps rows (`flush`), on so many bytes of disk.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn left(directory: &Path, disk: u64) -> Result<(Arc<Self>, LeftOver)> {
        let mut found = found_files::find(directory)?;
        // It says how things were at an end that was not one.
        for files in &mut found.tables {
            let ends = files.extract_if(.., |file| file.path.file_name().is_some_and(|name| name == END_FILE));
            found.unfinished.extend(ends.map(|file| file.path.clone()));
        }
        let store = Self::of(found.tables, Declared::of(found.declared), usize::MAX);
        store.segment_bytes.store(most_file_in_memory(disk), Ordering::Relaxed);
        Ok((store, LeftOver { damaged: found.damaged, unfinished: found.unfinished }))
    }

    fn of(files: Vec<Vec<Arc<ParquetFile>>>, declared: Declared, limit: usize) -> Arc<Self> {
        let mut tables: Vec<TableStore> = files.into_iter().map(TableStore::of_files).collect();
        tables.resize_with(TABLES.len() + declared::PLACES, TableStore::default);
        Arc::new(Self {
            tables,
            declared,
            limit: AtomicUsize::new(limit),
            counters: Counters::default(),
            losses: Losses::default(),
            segment_bytes: AtomicUsize::new(usize::MAX),
            kept: OnceLock::new(),
            relief: Notify::new(),
            taking: RwLock::default(),
        })
    }

    /// To be held from before an append until the journal has its batch: a segment is written to a file only when the
    /// journal has all of it.
    pub fn take(&self) -> RwLockReadGuard<'_, ()> {
        self.taking.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What they may take.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// What all rows in memory take, in bytes, and their text. No row goes for text that is past its share.
    pub fn memory(&self) -> usize {
        self.counters.memory.load(Ordering::Relaxed) + self.text_bytes().min(self.most_text())
    }

    /// What strings of connections take in memory, in bytes.
    pub fn text_bytes(&self) -> usize {
        self.counters.texts.load(Ordering::Relaxed)
    }

    fn most_text(&self) -> usize {
        self.limit() / TEXT_IN_LIMIT
    }

    /// Whether connections may bring so many bytes of strings more.
    pub fn has_room_for_text(&self, bytes: usize) -> bool {
        self.text_bytes() + bytes <= self.most_text().max(MIN_TEXT_BYTES)
    }

    /// Batches appended so far.
    pub fn appends(&self) -> u64 {
        self.counters.appends.load(Ordering::Relaxed)
    }

    /// All tables: those that everybody knows, and then those that the program declared.
    pub fn tables(&self) -> Vec<&'static Table> {
        self.declared.all()
    }

    /// Takes in a table that the program declares; the same one again is the one that is there.
    ///
    /// # Errors
    /// In words: it can't be, it differs from the one of this name, or there are too many.
    pub fn declare(&self, schema: &TableSchema) -> std::result::Result<&'static Table, String> {
        self.declared.declare(schema)
    }

    /// All tables now, as [`Store::tables`], and behind them empty ones.
    pub fn snapshot(&self) -> Vec<Arc<TableSnapshot>> {
        self.tables.iter().map(TableStore::snapshot).collect()
    }
}
