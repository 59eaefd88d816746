//! The store of rows: append-only segments behind snapshots, so that a query sees one instant and ingest never waits.
//!
//! [`StringReceiver`], [`ColumnMapping`] and [`BatchRows`] turn batches that arrive into columns; [`Store::append`] adds them
//! to the growing segment of their process and publishes the table's next snapshot. A store that keeps its rows (`flush`) writes
//! sealed segments to Parquet files of the run directory; [`Store::open`] opens such a directory again. Memory and disk
//! are bounded, and evicted rows are counted (`budget`).
//!
//! The crate knows tables, batches, files and the identity of the process that rows come from. It knows no SQL, no connection and no
//! command.

mod append;
mod budget;
mod cells;
mod column_mapping;
mod column_range;
mod declared;
mod disk_state;
mod file_names;
mod file_notes;
mod file_reader;
mod file_writer;
mod files;
mod flush;
mod footer;
mod found_files;
mod growing;
mod identity;
mod integers;
pub mod journal;
mod live_files;
mod merge;
mod offsets;
mod packed;
mod read_bytes;
mod record_batch_builder;
mod row_block;
pub mod row_files;
mod row_group;
mod rows;
pub mod runs;
mod schema;
mod sealed;
mod segment;
mod storage_stats;
mod store;
mod strings;
mod sums;
mod system;
mod table;
#[cfg(test)]
mod tests;
pub mod times;
mod write;

pub use self::column_mapping::ColumnMapping;
pub use self::file_reader::{FileFooter, GroupReader};
pub use self::files::ParquetFile;
pub use self::flush::StoreWriter;
pub use self::identity::{BatchOrigin, ProcessIdentity};
pub use self::live_files::LiveFiles;
pub use self::packed::{PackedColumn, PackedRows};
pub use self::record_batch_builder::RecordBatchBuilder;
pub use self::row_block::RowBlock;
pub use self::row_group::RowGroup;
pub use self::rows::{BatchRows, StoredBatch};
pub use self::schema::{arrow_schema, identity_columns, table_of};
pub use self::sealed::{RowLocation, SealedRows};
pub use self::segment::Segment;
pub use self::storage_stats::StorageStats;
pub use self::store::{EvictedRows, LeftOverFiles, Store};
pub use self::strings::StringReceiver;
pub use self::system::{SystemTable, segments_beside, system_segment};
pub use self::table::TableSnapshot;
pub use self::write::write_system;
