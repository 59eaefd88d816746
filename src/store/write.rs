//! The collector's own tables, written when a run ends.

use std::path::Path;
use std::sync::Arc;

use probe_proto::table::Source;
use probe_proto::tables::TABLES;

use super::file_writer::write_file;
use super::files::table_directory;
use crate::error::Result;
use crate::query::{SystemTable, system_segment};

/// The name that no file of rows has: those are numbered.
const FILE: &str = "end.parquet";

/// Writes what `system` has now, and an empty file for every table without one: whoever reads the directory finds all
/// tables with their columns.
///
/// # Errors
/// The file system's.
pub(crate) fn write_system(directory: &Path, system: &[Arc<dyn SystemTable>]) -> Result<()> {
    for table in TABLES.iter().copied() {
        let directory = table_directory(directory, table);
        let rows = system.iter().filter(|filled| std::ptr::eq(filled.table(), table));
        let segments = rows.filter_map(|filled| system_segment(filled.as_ref()).transpose());
        let segments = segments.collect::<Result<Vec<_>>>()?;
        if table.source == Source::Collector || is_empty(&directory) {
            write_file(&directory, FILE, table, &segments)?;
        }
    }
    Ok(())
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}
