//! Where rows live: append-only segments behind snapshots, so that a query sees one instant and ingest never waits.
//!
//! [`Strings`], [`Mapping`] and [`Rows`] turn what arrives into columns; [`Store::append`] adds them to the growing
//! segment of their process and publishes the table's next snapshot. A store that keeps its rows (`keep`) writes
//! sealed segments to Parquet files of the run directory; [`Store::open`] is such a directory again. Memory and disk
//! are bounded, and what had to go is counted (`budget`).

mod budget;
mod cells;
mod file_writer;
mod files;
mod identity;
mod keep;
mod mapping;
mod range;
mod rows;
mod schema;
mod segment;
mod strings;
mod table;
#[cfg(test)]
mod tests;
mod write;

use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use probe_proto::tables::TABLES;
use tokio::sync::Notify;

pub use self::budget::Evicted;
pub use self::identity::{Identity, Origin};
pub use self::mapping::Mapping;
pub use self::rows::Rows;
pub use self::schema::arrow_schema;
pub use self::strings::Strings;
pub(crate) use self::write::write_system;

pub(crate) use self::files::ParquetFile;
pub(crate) use self::segment::Segment;
pub(crate) use self::table::TableSnapshot;

pub(crate) use self::keep::Keeper;

use self::budget::Losses;
use self::keep::Kept;
use self::table::{Counters, TableStore};
use crate::error::Result;

/// Past the memory limit segments go whole, so none may take more than this part of it.
const SEGMENTS_IN_LIMIT: usize = 32;

/// All tables of a run, or of all runs that a collector serves.
#[derive(Debug)]
pub struct Store {
    /// As [`TABLES`].
    tables: Vec<TableStore>,
    limit: usize,
    counters: Counters,
    losses: Losses,
    /// Where rows are kept on disk, once that is known.
    kept: OnceLock<Kept>,
    /// Memory was made free.
    relief: Notify,
}

impl Store {
    /// An empty one whose rows may take `memory_limit` bytes.
    pub fn new(memory_limit: usize) -> Arc<Self> {
        Self::of(TABLES.iter().map(|_| TableStore::default()).collect(), memory_limit)
    }

    /// A run directory. Rows stay in their files; a table without files is empty.
    ///
    /// # Errors
    /// There is no such directory, a file of it is no Parquet file or has a column of another type than its table.
    pub fn open(directory: &Path) -> Result<Arc<Self>> {
        let tables = files::open(directory)?.into_iter().map(TableStore::of_files).collect();
        Ok(Self::of(tables, usize::MAX))
    }

    /// The same for a collector that goes on with that run.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub(crate) fn resume(directory: &Path, memory_limit: usize) -> Result<Arc<Self>> {
        let tables = files::open(directory)?.into_iter().map(TableStore::of_files).collect();
        Ok(Self::of(tables, memory_limit))
    }

    fn of(tables: Vec<TableStore>, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            tables,
            limit,
            counters: Counters::default(),
            losses: Losses::default(),
            kept: OnceLock::new(),
            relief: Notify::new(),
        })
    }

    /// Appends the rows of a batch of one process. Never waits for a query; past the memory limit rows go. Returns the
    /// append's number, which counts over all tables; None where there was nothing to append.
    pub fn append(&self, identity: &Arc<Identity>, origin: Origin, rows: Rows) -> Option<u64> {
        let place = schema::place(rows.table())?;
        if rows.is_empty() {
            return None;
        }
        let segment_bytes = self.limit / SEGMENTS_IN_LIMIT;
        let appended = self.tables[place].append(identity, origin, rows, segment_bytes, &self.counters);
        if self.memory() > self.limit {
            self.evict();
        }
        if let Some(kept) = self.kept.get()
            && (appended.sealed || self.memory() > self.soft_limit())
        {
            kept.wake();
        }
        Some(appended.number)
    }

    /// What all rows in memory take, in bytes.
    pub fn memory(&self) -> usize {
        self.counters.memory.load(Ordering::Relaxed)
    }

    /// Batches appended so far.
    pub(crate) fn appends(&self) -> u64 {
        self.counters.appends.load(Ordering::Relaxed)
    }

    /// All tables now, as [`TABLES`].
    pub(crate) fn snapshot(&self) -> Vec<Arc<TableSnapshot>> {
        self.tables.iter().map(TableStore::snapshot).collect()
    }
}
