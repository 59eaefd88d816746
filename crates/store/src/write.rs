//! Writes the collector's own tables when a run ends, and a whole store as a directory.

use std::path::Path;
use std::sync::Arc;

use probe_common::error::Result;
use probe_common::paths::io_error_at;
use probe_proto::table::{Table, TableSource};

use super::file_names::{END_FILE, table_directory};
use super::file_writer::write_file;
use super::segment::Segment;
use super::store::Store;
use crate::system::{SystemTable, segments_beside, system_segment};

/// Number of segments in a file of a store that is written as a whole.
const SEGMENTS: usize = 16;

/// Writes the rows that `system` has now, and an empty file for every one of `tables` without a file, so that the directory
/// has all tables with their columns.
///
/// # Errors
/// The file system's.
pub fn write_system(directory: &Path, tables: &[&'static Table], system: &[Arc<dyn SystemTable>]) -> Result<()> {
    for table in tables.iter().copied() {
        let directory = table_directory(directory, table);
        let rows = system.iter().filter(|filled| std::ptr::eq(filled.table(), table));
        let mut segments = Vec::new();
        for filled in rows {
            match table.source {
                TableSource::Collector => segments.extend(system_segment(filled.as_ref())?),
                TableSource::Agent => segments.extend(segments_beside(filled.as_ref())?),
            }
        }
        std::fs::create_dir_all(&directory).map_err(|error| io_error_at(&directory, error))?;
        if table.source == TableSource::Collector || !segments.is_empty() || is_empty(&directory) {
            write_file(&directory, END_FILE, table, &segments, &|_| ())?;
        }
    }
    Ok(())
}

impl Store {
    /// Writes all rows in memory, and those that `system` has now, to a directory that has no files yet.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, directory: &Path, system: &[Arc<dyn SystemTable>]) -> Result<()> {
        let tables = self.tables();
        for (table, snapshot) in tables.iter().zip(self.snapshot()) {
            let directory = table_directory(directory, table);
            std::fs::create_dir_all(&directory).map_err(|error| io_error_at(&directory, error))?;
            let segments: Vec<Arc<Segment>> = snapshot.segments().collect();
            for (number, segments) in segments.chunks(SEGMENTS).enumerate() {
                write_file(&directory, &format!("{number:08}.parquet"), table, segments, &|_| ())?;
            }
        }
        write_system(directory, &tables, system)
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}
