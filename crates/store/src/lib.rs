//! Where rows live: append-only segments behind snapshots, so that a query sees one instant and ingest never waits.
//!
//! [`Strings`], [`Mapping`] and [`Rows`] turn what arrives into columns; [`Store::append`] adds them to the growing
//! segment of their process and publishes the table's next snapshot. A store that keeps its rows (`keep`) writes
//! sealed segments to Parquet files of the run directory; [`Store::open`] is such a directory again. Memory and disk
//! are bounded, and what had to go is counted (`budget`).

mod budget;
mod cells;
mod census;
mod declared;
mod file_notes;
mod file_reader;
mod file_writer;
mod files;
mod footer;
mod growing;
mod identity;
pub mod journal;
mod keep;
mod mapping;
mod merge;
mod range;
mod rows;
pub mod runs;
mod schema;
mod sealed;
mod segment;
mod strings;
mod sums;
mod system;
mod table;
#[cfg(test)]
mod tests;
mod write;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use probe_proto::table::Table;
use probe_proto::tables::TABLES;
use probe_proto::v1::TableSchema;
use tokio::sync::Notify;

pub use self::budget::Evicted;
pub use self::census::Census;
pub use self::identity::{Identity, Origin};
pub use self::mapping::Mapping;
pub use self::rows::Batch;
pub use self::rows::Rows;
pub use self::schema::arrow_schema;
pub use self::schema::{identity_columns, table_of};
pub use self::strings::Strings;
pub use self::system::{SystemRows, SystemTable, segments_beside, system_segment};
pub use self::write::write_system;

pub use self::file_reader::GroupReader;
pub use self::files::{ParquetFile, RowGroup};
pub use self::sealed::{Place, Sealed};
pub use self::segment::Segment;
pub use self::table::TableSnapshot;

pub use self::keep::Keeper;

use self::budget::Losses;
use self::declared::Declared;
use self::keep::Kept;
use self::table::{Counters, TableStore};
use probe_common::error::{Error, Result};

/// Past the memory limit segments go whole, so none may take more than this part of it.
const SEGMENTS_IN_LIMIT: usize = 32;

/// Strings of connections may take this part of it, and so many bytes in any case.
const TEXT_IN_LIMIT: usize = 4;
const LEAST_TEXT: usize = 1 << 20;

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
            fs::rename(path, path.with_extension("parquet.damaged"))?;
        }
        for path in &self.unfinished {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// All tables of a run, or of all runs that a collector serves.
#[derive(Debug)]
pub struct Store {
    /// As [`Store::tables`], and behind them the empty places of those that may come.
    tables: Vec<TableStore>,
    declared: Declared,
    limit: AtomicUsize,
    counters: Counters,
    losses: Losses,
    /// No segment takes more, so that no file of one segment is too large for the disk.
    segment_bytes: AtomicUsize,
    /// Where rows are kept on disk, once that is known.
    kept: OnceLock<Kept>,
    /// Memory was made free.
    relief: Notify,
    /// Held to read by whoever appends, until the journal has it too.
    taking: RwLock<()>,
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
        let found = files::find(directory)?;
        match found.damaged.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(Self::of(found.tables, Declared::of(found.declared), usize::MAX)),
        }
    }

    /// The same for a run whose collector died. Files that can't be read are left out, and told of with those that
    /// nobody has finished. Its memory is unlimited until it keeps rows (`keep`), on so many bytes of disk.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn left(directory: &Path, disk: u64) -> Result<(Arc<Self>, LeftOver)> {
        let mut found = files::find(directory)?;
        // It says how things were at an end that was not one.
        for files in &mut found.tables {
            let ends = files.extract_if(.., |file| file.path.file_name().is_some_and(|name| name == write::FILE));
            found.unfinished.extend(ends.map(|file| file.path.clone()));
        }
        let store = Self::of(found.tables, Declared::of(found.declared), usize::MAX);
        store.segment_bytes.store(keep::most_file_in_memory(disk), Ordering::Relaxed);
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

    /// Appends the rows of a batch of one process. Never waits for a query; past the memory limit rows go. Returns the
    /// append's number, which counts over all tables; None where there was nothing to append.
    pub fn append(&self, identity: &Arc<Identity>, origin: Origin, rows: Rows) -> Option<u64> {
        let place = self.declared.place(rows.table())?;
        if rows.is_empty() {
            return None;
        }
        let segment_bytes = (self.limit() / SEGMENTS_IN_LIMIT).min(self.segment_bytes.load(Ordering::Relaxed));
        let appended = self.tables[place].append(identity, origin, rows, segment_bytes, &self.counters);
        if self.memory() > self.soft_limit() {
            self.unload();
        }
        if let Some(kept) = self.kept.get()
            && (appended.sealed || self.memory() > self.soft_limit())
        {
            kept.wake();
        }
        if self.memory() > self.limit() {
            self.evict();
        }
        Some(appended.number)
    }

    /// What they may take.
    fn limit(&self) -> usize {
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
        self.text_bytes() + bytes <= self.most_text().max(LEAST_TEXT)
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
