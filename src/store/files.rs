//! The files of a run directory: found, checked by their footers, and left where they are.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::Statistics;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};
use probe_proto::table::Table;
use probe_proto::tables::TABLES;

use super::schema::arrow_schema;
use crate::error::{Error, Result};

/// A Parquet file with rows of one table.
#[derive(Debug, Clone)]
pub(crate) struct ParquetFile {
    /// Absolute.
    pub(crate) path: PathBuf,
    /// Of the file.
    pub(crate) bytes: u64,
    /// Of the table's columns, from the footer.
    pub(crate) statistics: Arc<Statistics>,
}

/// Where the files of a table are.
pub(super) fn table_directory(directory: &Path, table: &Table) -> PathBuf {
    directory.join(table.full_name())
}

/// The files of every table, as [`TABLES`]; tables without any are empty.
pub(super) fn open(directory: &Path) -> Result<Vec<Vec<Arc<ParquetFile>>>> {
    let directory = fs::canonicalize(directory)
        .map_err(|error| Error::failed(format!("cannot open the run directory {}: {error}", directory.display())))?;
    TABLES.iter().map(|table| open_table(&directory, table)).collect()
}

fn open_table(directory: &Path, table: &'static Table) -> Result<Vec<Arc<ParquetFile>>> {
    let directory = table_directory(directory, table);
    let cannot = |error: std::io::Error| Error::failed(format!("cannot read {}: {error}", directory.display()));
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|extension| extension == "parquet") {
            paths.push(path);
        }
    }
    paths.sort();
    let schema = arrow_schema(table);
    paths.into_iter().map(|path| open_file(path, table, &schema).map(Arc::new)).collect()
}

fn open_file(path: PathBuf, table: &Table, schema: &SchemaRef) -> Result<ParquetFile> {
    let wrong = |what: String| Error::failed(format!("cannot read {}: {what}", path.display()));
    let file = File::open(&path).map_err(|error| wrong(error.to_string()))?;
    let bytes = file.metadata().map_err(|error| wrong(error.to_string()))?.len();
    let metadata = ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Skip)
        .parse_and_finish(&file)
        .map_err(|error| wrong(error.to_string()))?;
    let footer = metadata.file_metadata();
    let found = parquet_to_arrow_schema(footer.schema_descr(), footer.key_value_metadata())
        .map_err(|error| wrong(error.to_string()))?;
    check(&found, table, schema).map_err(wrong)?;
    let mut statistics = DFParquetMetadata::statistics_from_parquet_metadata(&metadata, schema)
        .map_err(|error| wrong(error.to_string()))?;
    for (field, column) in schema.fields().iter().zip(&mut statistics.column_statistics) {
        // A Parquet footer leaves NaN out of its bounds, and an aggregate does not.
        if field.data_type().is_floating() {
            column.min_value = std::mem::take(&mut column.min_value).to_inexact();
            column.max_value = std::mem::take(&mut column.max_value).to_inexact();
        }
    }
    Ok(ParquetFile { path, bytes, statistics: Arc::new(statistics) })
}

/// A file may lack columns that can be NULL, and may have others; those that both have must be of one type.
fn check(found: &Schema, table: &Table, expected: &Schema) -> Result<(), String> {
    for field in expected.fields() {
        match found.field_with_name(field.name()) {
            Ok(column) if column.data_type() == field.data_type() => {}
            Ok(column) => {
                return Err(format!(
                    "column {} of {} is {} there, and {} here",
                    field.name(),
                    table.full_name(),
                    column.data_type(),
                    field.data_type()
                ));
            }
            Err(_) if field.is_nullable() => {}
            Err(_) => return Err(format!("it has no column {}", field.name())),
        }
    }
    Ok(())
}
