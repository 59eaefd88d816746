//! Writes segments to a Parquet file that DuckDB, Polars or Spark read as it is, and that appears whole or not at all.
//!
//! Encodings, measured on torch_trace rows (262144 of one rank, 128 modules; bytes a row on disk): floats are split
//! into streams of bytes (2.9 a value, against 3.4 plain and 4.9 by dictionary, for durations in whole 2^-30 s; 7.0
//! against 7.6 and 9.1 where they have all 52 bits), timestamps are differences (2.1), everything else is a dictionary
//! (0.1 for all of it). zstd at level 3 or 9 saves less than a hundredth of level 1's size.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use probe_common::durable;
use probe_common::error::{Error, Result};
use probe_proto::table::{ColumnType, Table};

use super::file_names::UNFINISHED;
use super::file_notes::{self, RowGroupNote};
use super::files::ParquetFile;
use super::schema::{arrow_schema, identity_columns};
use super::segment::Segment;

/// The compression level of zstd.
const LEVEL: i32 = 1;

/// A float column whose different values take more bytes than this gets no dictionary.
const FLOAT_DICTIONARY: usize = 16 << 10;

/// Rows of a page. A row group with more gets bounds of its pages; one with fewer would only get a larger file.
const PAGE_ROWS: usize = 20_000;

/// Bytes between two requests for more room.
const STEP: u64 = 16 << 10;

/// Called with the number of bytes that a file is about to have, before it has them.
pub(super) type ReserveBytes<'a> = &'a (dyn Fn(u64) + Sync);

/// Writes `segments`, a row group each, to `DIRECTORY/NAME`. The name appears when the file is whole and on disk; until
/// then it is `.NAME.writing`.
///
/// # Errors
/// The file system's. There is then no such file, unless one was there before.
pub(super) fn write_file(
    directory: &Path,
    name: &str,
    table: &'static Table,
    segments: &[Arc<Segment>],
    room: ReserveBytes<'_>,
) -> Result<ParquetFile> {
    let notes: Vec<RowGroupNote> = segments.iter().map(|segment| RowGroupNote::of(segment, table)).collect();
    let schema = arrow_schema(table);
    let columns: Vec<usize> = (0..schema.fields().len()).collect();
    let largest = segments.iter().map(|segment| segment.rows).max().unwrap_or(0);
    let (metadata, bytes) = write_groups(directory, name, table, notes.clone(), largest, room, |number, write| {
        let segment = &segments[number];
        segment.batches.iter().try_for_each(|batch| {
            let rows = segment.record_batch(batch, 0, batch.rows, &columns, &schema);
            write(&rows.map_err(Error::caused)?)
        })
    })?;
    Ok(ParquetFile::written(directory.join(name), bytes, table, segments, &notes, &metadata))
}

/// Writes a file as [`write_file`] does, with a row group for each of `notes`, the largest of which has `largest` rows. `rows` is
/// called with a row group's number and passes that group's rows to the function that it gets.
pub(super) fn write_groups(
    directory: &Path,
    name: &str,
    table: &'static Table,
    notes: Vec<RowGroupNote>,
    largest: usize,
    room: ReserveBytes<'_>,
    rows: impl FnMut(usize, &mut dyn FnMut(&RecordBatch) -> Result<()>) -> Result<()>,
) -> Result<(ParquetMetaData, u64)> {
    let path = directory.join(name);
    let unfinished = directory.join(format!(".{name}.{UNFINISHED}"));
    let written = (|| {
        probe_common::fault::check(&path).map_err(Error::caused)?;
        let groups = notes.len();
        let properties = properties(table, notes, largest > PAGE_ROWS)?;
        let written = write(&unfinished, table, groups, properties, room, rows)?;
        durable::rename(&unfinished, &path).map_err(Error::caused)?;
        Ok(written)
    })();
    written.map_err(|error: Error| {
        // The error is returned. Should the removal fail too, the next attempt at the name overwrites the file.
        let _ = fs::remove_file(&unfinished);
        Error::failed(format!("cannot write {}", path.display())).because(error)
    })
}

fn write(
    path: &Path,
    table: &'static Table,
    groups: usize,
    properties: WriterProperties,
    room: ReserveBytes<'_>,
    mut rows: impl FnMut(usize, &mut dyn FnMut(&RecordBatch) -> Result<()>) -> Result<()>,
) -> Result<(ParquetMetaData, u64)> {
    // Without Arrow's schema: readers would take text for string views, which few of them can compute with.
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let file = ReservingWriter { file: File::create(path).map_err(Error::caused)?, bytes: 0, asked: 0, room };
    let mut writer = ArrowWriter::try_new_with_options(file, arrow_schema(table), options).map_err(unwrapped)?;
    for number in 0..groups {
        rows(number, &mut |batch| writer.write(batch).map_err(unwrapped))?;
        writer.flush().map_err(unwrapped)?;
    }
    let metadata = writer.finish().map_err(unwrapped)?;
    let file = &writer.inner().file;
    file.sync_all().map_err(Error::caused)?;
    Ok((metadata, file.metadata().map_err(Error::caused)?.len()))
}

/// An error of the file system without the word that Parquet puts before it.
fn unwrapped(error: ParquetError) -> Error {
    match error {
        ParquetError::External(cause) => Error::caused(cause),
        other => Error::caused(other),
    }
}

/// A file that asks for room before it takes it.
struct ReservingWriter<'a> {
    file: File,
    bytes: u64,
    asked: u64,
    room: ReserveBytes<'a>,
}

impl Write for ReservingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let needed = self.bytes + bytes.len() as u64;
        if needed > self.asked {
            self.asked = needed + STEP;
            (self.room)(self.asked);
        }
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn properties(table: &'static Table, notes: Vec<RowGroupNote>, has_pages: bool) -> Result<WriterProperties> {
    let notes = file_notes::write(notes).map_err(Error::caused)?;
    let level = ZstdLevel::try_new(LEVEL).map_err(Error::caused)?;
    let mut properties = WriterProperties::builder()
        .set_created_by(format!("probe {}", probe_proto::VERSION))
        .set_compression(Compression::ZSTD(level))
        .set_key_value_metadata(Some(vec![notes]))
        // Each segment is one row group, so size is no reason for the writer to begin another.
        .set_max_row_group_row_count(None)
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(!has_pages);
    for (index, column) in table.all_columns().enumerate() {
        let path = ColumnPath::from(column.name);
        // A scan skips pages by their bounds. Text and booleans have none, and identity columns are the same in all pages.
        let has_bounds = !matches!(column.kind, ColumnType::Text | ColumnType::Bool | ColumnType::Unspecified);
        if has_pages && has_bounds && index >= identity_columns(table) {
            properties = properties.set_column_statistics_enabled(path.clone(), EnabledStatistics::Page);
        }
        properties = match column.kind {
            ColumnType::Timestamp => properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
            // A column gets this encoding where its dictionary has grown too large.
            ColumnType::Int32 | ColumnType::Int64 => {
                properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED)
            }
            ColumnType::Float64 => properties
                .set_column_dictionary_page_size_limit(path.clone(), FLOAT_DICTIONARY)
                .set_column_encoding(path, Encoding::BYTE_STREAM_SPLIT),
            ColumnType::Text | ColumnType::Bool | ColumnType::Unspecified => properties,
        };
    }
    Ok(properties.build())
}
