//! Where rows live: append-only segments behind snapshots, so that a query sees one instant and ingest never waits.
//!
//! [`Strings`], [`Mapping`] and [`Rows`] turn what arrives into columns; [`Store::append`] adds them to the growing
//! segment of their process and publishes the table's next snapshot. Memory is bounded: past the limit the segments
//! whose newest row is the oldest go, and are counted ([`Store::evicted`]). [`Store::write`] makes a run directory of
//! Parquet files, [`Store::open`] is one again.

mod cells;
mod eviction;
mod file_notes;
mod file_reader;
mod file_writer;
mod files;
mod footer;
mod identity;
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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use probe_proto::tables::TABLES;

pub use self::eviction::Evicted;
pub use self::identity::{Identity, Origin};
pub use self::mapping::Mapping;
pub(crate) use self::rows::Batch;
pub use self::rows::Rows;
pub use self::schema::arrow_schema;
pub(crate) use self::schema::identity_columns;
pub use self::strings::Strings;

pub(crate) use self::file_reader::GroupReader;
pub(crate) use self::files::{ParquetFile, RowGroup};
pub(crate) use self::segment::Segment;
pub(crate) use self::table::TableSnapshot;

use self::eviction::Losses;
use self::table::TableStore;
use crate::error::Result;
use crate::query::SystemTable;

/// Past the memory limit segments go whole, so none may take more than this part of it.
const SEGMENTS_IN_LIMIT: usize = 32;

/// All tables of a run, or of all runs that a collector serves.
#[derive(Debug)]
pub struct Store {
    /// As [`TABLES`].
    tables: Vec<TableStore>,
    limit: usize,
    bytes: AtomicUsize,
    appends: AtomicU64,
    losses: Losses,
}

impl Store {
    /// An empty one whose rows may take `memory_limit` bytes.
    pub fn new(memory_limit: usize) -> Arc<Self> {
        Self::of(TABLES.iter().map(|_| TableStore::default()).collect(), memory_limit)
    }

    /// A run directory that [`Store::write`] made. Rows stay in their files; a table without files is empty.
    ///
    /// # Errors
    /// There is no such directory, a file of it is no Parquet file or has a column of another type than its table.
    pub fn open(directory: &Path) -> Result<Arc<Self>> {
        let tables = files::open(directory)?.into_iter().map(TableStore::of_files).collect();
        Ok(Self::of(tables, usize::MAX))
    }

    fn of(tables: Vec<TableStore>, limit: usize) -> Arc<Self> {
        let (bytes, appends) = (AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(Self { tables, limit, bytes, appends, losses: Losses::default() })
    }

    /// Appends the rows of a batch of one process. Never waits for a query; past the memory limit it evicts.
    pub fn append(&self, identity: &Arc<Identity>, origin: Origin, rows: Rows) {
        let Some(place) = schema::place(rows.table()) else { return };
        if rows.is_empty() {
            return;
        }
        let number = self.appends.fetch_add(1, Ordering::Relaxed);
        self.tables[place].append(identity, origin, rows, number, self.limit / SEGMENTS_IN_LIMIT, &self.bytes);
        if self.memory() > self.limit {
            self.evict();
        }
    }

    /// What all rows in memory take, in bytes.
    pub fn memory(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Writes every table, and what `system` has now, to `DIRECTORY/<schema>.<table>/*.parquet`. A table's directory
    /// appears whole or not at all, in place of an older one; rows appended meanwhile are not in it.
    ///
    /// # Errors
    /// The file system's. What was there before is then still there.
    pub fn write(&self, directory: &Path, system: &[Arc<dyn SystemTable>]) -> Result<()> {
        write::write(&self.snapshot(), directory, system)
    }

    /// All tables now, as [`TABLES`].
    pub(crate) fn snapshot(&self) -> Vec<Arc<TableSnapshot>> {
        self.tables.iter().map(TableStore::snapshot).collect()
    }
}
