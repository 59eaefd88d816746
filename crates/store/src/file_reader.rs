//! Reads row groups: of a file only the column chunks that are asked for, each with one read of exactly its bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use bytes::{Buf, Bytes};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_schema};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use probe_common::error::{Error, Result};

use super::files::ParquetFile;
use super::footer::chunk;
use super::identity::Identity;

/// The rows of a row group, some of its columns.
pub struct GroupReader {
    /// None where no column has to come from the file.
    rows: Option<ParquetRecordBatchReader>,
    /// Not read yet.
    left: usize,
    batch_rows: usize,
    columns: Vec<Source>,
    schema: SchemaRef,
    /// Of the file, for errors.
    file: Arc<ParquetFile>,
}

/// Where a column of the answer comes from.
enum Source {
    /// This one of those that are read.
    File(usize),
    /// The group's identity, at this place.
    Identity(Arc<Identity>, usize),
    /// The file lacks it.
    Nulls,
}

impl GroupReader {
    /// Reads the columns at `places` of the table, which are those of `schema`. `read` is told of every byte of a
    /// column that was read from the file.
    ///
    /// # Errors
    /// The file is gone or is not what it was when it was opened.
    pub fn open(
        file: &Arc<ParquetFile>,
        group: usize,
        places: &[usize],
        schema: &SchemaRef,
        batch_rows: usize,
        read: impl FnMut(usize),
    ) -> Result<Self> {
        Self::open_group(file, group, places, schema, batch_rows, read).map_err(|error| cannot(file, &error))
    }

    fn open_group(
        file: &Arc<ParquetFile>,
        number: usize,
        places: &[usize],
        schema: &SchemaRef,
        batch_rows: usize,
        mut read: impl FnMut(usize),
    ) -> Result<Self, ParquetError> {
        let group = &file.groups[number];
        let constant = |place: usize| group.identity.as_ref().filter(|_| place < file.identity_columns());
        let (batch_rows, left) = (batch_rows.max(1), group.rows);
        let mut reader = Self {
            rows: None,
            left,
            batch_rows,
            columns: Vec::new(),
            schema: Arc::clone(schema),
            file: Arc::clone(file),
        };
        if let Some(columns) =
            places.iter().map(|place| Some(Source::Identity(Arc::clone(constant(*place)?), *place))).collect()
        {
            reader.columns = columns;
            return Ok(reader);
        }
        let opened = File::open(&file.path)?;
        let footer = footer(file, &opened)?;
        let chunks = footer.metadata().row_group(number);
        let mut roots = Vec::new();
        let mut bytes = Chunks { length: opened.metadata()?.len(), chunks: Vec::new() };
        for (place, field) in places.iter().zip(schema.fields()) {
            if constant(*place).is_some() {
                continue;
            }
            let (Some(chunk), Ok(root)) = (chunk(chunks, field.name()), footer.schema().index_of(field.name())) else {
                continue;
            };
            let (start, length) = chunk.byte_range();
            let mut buffer = vec![0; usize::try_from(length)?];
            opened.read_exact_at(&mut buffer, start)?;
            read(buffer.len());
            bytes.chunks.push((start, buffer.into()));
            roots.push(root);
        }
        // What is read comes in the order of the file.
        let mut order = roots.clone();
        order.sort_unstable();
        let source = |(place, field): (&usize, &Arc<Field>)| match constant(*place) {
            Some(identity) => Source::Identity(Arc::clone(identity), *place),
            None => {
                let root = footer.schema().index_of(field.name()).ok();
                root.and_then(|root| order.binary_search(&root).ok()).map_or(Source::Nulls, Source::File)
            }
        };
        reader.columns = places.iter().zip(schema.fields()).map(source).collect();
        let mask = ProjectionMask::roots(footer.parquet_schema(), roots);
        let rows = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, ArrowReaderMetadata::clone(&footer))
            .with_projection(mask)
            .with_row_groups(vec![number])
            .with_batch_size(batch_rows)
            .build()?;
        reader.rows = Some(rows);
        Ok(reader)
    }

    fn batch(&mut self) -> Result<RecordBatch, ArrowError> {
        let read = match &mut self.rows {
            Some(rows) => match rows.next() {
                Some(batch) => Some(batch?),
                None => return Err(ArrowError::ParquetError("it has fewer rows than its footer says".into())),
            },
            None => None,
        };
        let length = read.as_ref().map_or(self.left.min(self.batch_rows), RecordBatch::num_rows);
        let column = |(source, field): (&Source, &Arc<Field>)| -> Result<ArrayRef, ArrowError> {
            match (source, &read) {
                (Source::File(column), Some(batch)) => Ok(Arc::clone(batch.column(*column))),
                (Source::Identity(identity, place), _) => identity.column(*place, length),
                _ => Ok(new_null_array(field.data_type(), length)),
            }
        };
        let columns = self.columns.iter().zip(self.schema.fields()).map(column).collect::<Result<Vec<_>, _>>()?;
        self.left = self.left.saturating_sub(length);
        let options = RecordBatchOptions::new().with_row_count(Some(length));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
    }
}

impl Iterator for GroupReader {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let batch = self.batch();
        if batch.is_err() {
            self.left = 0;
        }
        Some(batch.map_err(|error| cannot(&self.file, &error)))
    }
}

fn cannot(file: &ParquetFile, error: &dyn std::error::Error) -> Error {
    let path = file.path.display();
    if file.had_to_go.load(Ordering::Relaxed) {
        return Error::limit(format!(
            "{path} had to go while it was read: its rows were the oldest that PROBE_DISK held"
        ))
        .hint("ask again, for fewer of the oldest rows, or start the collector with a larger PROBE_DISK");
    }
    Error::failed(format!("cannot read {path}: {error}"))
}

/// The file's footer: shared by those who read the file at the same time, and not kept for longer.
fn footer(file: &ParquetFile, opened: &File) -> Result<Arc<ArrowReaderMetadata>, ParquetError> {
    let mut shared = file.footer.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(footer) = shared.upgrade() {
        return Ok(footer);
    }
    let metadata =
        ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Skip).parse_and_finish(opened)?;
    let described = metadata.file_metadata();
    let found = parquet_to_arrow_schema(described.schema_descr(), described.key_value_metadata())?;
    let options = ArrowReaderOptions::new().with_schema(Arc::new(with_views(&found)));
    let footer = Arc::new(ArrowReaderMetadata::try_new(Arc::new(metadata), options)?);
    *shared = Arc::downgrade(&footer);
    Ok(footer)
}

/// Text is read as views, which is how the tables have it.
fn with_views(found: &Schema) -> Schema {
    let field = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View)),
        _ => Arc::clone(field),
    };
    Schema::new_with_metadata(found.fields().iter().map(field).collect::<Vec<_>>(), found.metadata().clone())
}

/// The column chunks that were read.
struct Chunks {
    /// Of the file.
    length: u64,
    /// Where each begins, and what is there.
    chunks: Vec<(u64, Bytes)>,
}

impl Chunks {
    fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let within = |(first, bytes): &&(u64, Bytes)| *first <= start && start - first < bytes.len() as u64;
        let found = self.chunks.iter().find(within);
        let (first, bytes) = found.ok_or_else(|| ParquetError::General(format!("no column is at {start}")))?;
        Ok(bytes.slice((start - first) as usize..))
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Chunks {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.from(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} are not within a column")));
        }
        Ok(bytes.slice(..length))
    }
}
