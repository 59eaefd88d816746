//! A run directory: every table as Parquet files that DuckDB, Polars or Spark read as they are.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use probe_proto::table::Table;
use probe_proto::tables::TABLES;

use super::file_writer::write_file;
use super::files::table_directory;
use super::segment::Segment;
use super::table::TableSnapshot;
use crate::error::{Error, Result};
use crate::query::SystemTable;

/// Rows of a file, roughly: what several readers can share.
const FILE: usize = 1 << 22;

/// A directory of this name holds what is being written; one that is left over holds what was not finished.
const UNFINISHED: &str = ".writing";

/// Writes all tables: each into a directory beside the others', which then takes its place.
pub(super) fn write(tables: &[Arc<TableSnapshot>], directory: &Path, system: &[Arc<dyn SystemTable>]) -> Result<()> {
    let cannot = |error: Error| Error::failed(format!("cannot write the run to {}: {error}", directory.display()));
    let unfinished = directory.join(format!("{UNFINISHED}-{}", std::process::id()));
    let result = (|| {
        fs::create_dir_all(directory)?;
        for left_over in unfinished_in(directory)? {
            fs::remove_dir_all(left_over)?;
        }
        fs::create_dir(&unfinished)?;
        for (table, snapshot) in TABLES.iter().zip(tables) {
            let mut segments: Vec<Arc<Segment>> = snapshot.segments().cloned().collect();
            for filled in system.iter().filter(|filled| std::ptr::eq(filled.table(), *table)) {
                segments.extend(crate::query::system_segment(filled.as_ref())?);
            }
            write_table(&table_directory(&unfinished, table), table, &segments)?;
            link_files(&table_directory(&unfinished, table), snapshot)?;
        }
        for table in TABLES {
            put_in_place(&unfinished, directory, table)?;
        }
        fs::remove_dir_all(&unfinished)?;
        sync(directory)
    })();
    if result.is_err() {
        // What went wrong is said; what is left over is removed by the next attempt, should this fail too.
        let _ = fs::remove_dir_all(&unfinished);
    }
    result.map_err(cannot)
}

/// Directories that earlier attempts have left.
fn unfinished_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn write_table(directory: &Path, table: &'static Table, segments: &[Arc<Segment>]) -> Result<()> {
    fs::create_dir(directory)?;
    let mut rest = segments;
    let mut number = 0;
    // An empty table is an empty file: whoever reads it finds the columns.
    while number == 0 || !rest.is_empty() {
        let mut rows = 0;
        let count = rest.iter().take_while(|segment| {
            let fits = rows == 0 || rows + segment.rows <= FILE;
            rows += segment.rows;
            fits
        });
        let (now, later) = rest.split_at(count.count());
        write_file(directory, &format!("{number:06}.parquet"), table, now)?;
        rest = later;
        number += 1;
    }
    sync(directory)
}

/// What is in files already is not written again.
fn link_files(directory: &Path, snapshot: &TableSnapshot) -> Result<()> {
    for (number, file) in snapshot.files.iter().enumerate() {
        let link = directory.join(format!("kept-{number:06}.parquet"));
        if fs::hard_link(&file.path, &link).is_err() {
            fs::copy(&file.path, &link)?;
        }
    }
    Ok(())
}

/// Moves a finished table to where it belongs, in place of what is there.
fn put_in_place(unfinished: &Path, directory: &Path, table: &Table) -> Result<()> {
    let target = table_directory(directory, table);
    if target.exists() {
        fs::rename(&target, unfinished.join(format!("old-{}", table.full_name())))?;
    }
    fs::rename(table_directory(unfinished, table), target)?;
    Ok(())
}

fn sync(directory: &Path) -> Result<()> {
    Ok(File::open(directory)?.sync_all()?)
}
