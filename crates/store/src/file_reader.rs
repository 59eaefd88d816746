//! Reads row groups: only the requested column chunks of a file, and of those only the pages with rows that are needed.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringViewArray, UInt32Array};
use arrow::buffer::ScalarBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion::common::ScalarValue;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection,
    RowSelectionPolicy, RowSelector,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_schema};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};
use probe_common::error::{Error, Result};

use super::files::ParquetFile;
use super::footer::chunk_index;
use super::identity::ProcessIdentity;
use super::packed::{PackedColumn, PackedRows};
use super::read_bytes::ReadBytes;
use super::row_block::{RowBlock, blocks};

/// Reads the rows of a row group, some of its columns.
pub struct GroupReader {
    /// None where no column has to come from the file.
    reader: Option<ParquetRecordBatchReader>,
    /// Rows that are not read yet.
    unread: usize,
    batch_rows: usize,
    columns: Vec<ColumnSource>,
    schema: SchemaRef,
    /// The file, for errors.
    file: Arc<ParquetFile>,
    footer: Option<FileFooter>,
}

/// The footer of a file. As long as one is held, readers of the file share it and don't parse it again.
#[derive(Debug, Clone)]
pub struct FileFooter(Arc<ArrowReaderMetadata>);

impl PartialEq for FileFooter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The source of a column of the answer.
enum ColumnSource {
    /// The column with this index among those that are read from the file.
    File(usize, LastTexts),
    /// The value of the group's identity column with this index.
    Identity(Arc<ProcessIdentity>, usize),
    /// The file lacks the column.
    Nulls,
}

impl GroupReader {
    /// Reads the columns of the table with these `indices`, which are those of `schema`. `choose` says which blocks of rows are
    /// needed, or None for all. `read` is called with the number of bytes of each column that was read from the file.
    ///
    /// # Errors
    /// The file is gone or is not what it was when it was opened.
    pub fn open(
        file: &Arc<ParquetFile>,
        group: usize,
        indices: &[usize],
        schema: &SchemaRef,
        batch_rows: usize,
        choose: impl FnOnce(&[RowBlock]) -> Option<Vec<bool>>,
        read: impl FnMut(usize),
    ) -> Result<Self> {
        Self::open_group(file, group, indices, schema, batch_rows, choose, read).map_err(|error| cannot(file, error))
    }

    fn open_group(
        file: &Arc<ParquetFile>,
        number: usize,
        indices: &[usize],
        schema: &SchemaRef,
        batch_rows: usize,
        choose: impl FnOnce(&[RowBlock]) -> Option<Vec<bool>>,
        mut read: impl FnMut(usize),
    ) -> Result<Self, ParquetError> {
        let group = &file.groups[number];
        let constant = |index: usize| group.identity.as_ref().filter(|_| index < file.identity_columns());
        let batch_rows = batch_rows.max(1);
        let mut reader = Self {
            reader: None,
            unread: group.rows,
            batch_rows,
            columns: Vec::new(),
            schema: Arc::clone(schema),
            file: Arc::clone(file),
            footer: None,
        };
        if let Some(columns) =
            indices.iter().map(|index| Some(ColumnSource::Identity(Arc::clone(constant(*index)?), *index))).collect()
        {
            reader.columns = columns;
            return Ok(reader);
        }
        let opened = File::open(&file.path)?;
        let footer = footer(file, &opened)?;
        reader.footer = Some(FileFooter(Arc::clone(&footer)));
        let blocks = blocks(footer.metadata(), number, group, file.table, indices);
        let needed = if blocks.len() > 1 { choose(&blocks).and_then(|keep| selection(&blocks, &keep)) } else { None };
        if let Some(needed) = &needed {
            reader.unread = needed.row_count();
            if reader.unread == 0 {
                return Ok(reader);
            }
        }
        let chunks = footer.metadata().row_group(number);
        let mut roots = Vec::new();
        let mut bytes = ReadBytes::new(opened.metadata()?.len());
        for (index, field) in indices.iter().zip(schema.fields()) {
            if constant(*index).is_some() {
                continue;
            }
            let (Some(chunk), Ok(root)) = (chunk_index(chunks, field.name()), footer.schema().index_of(field.name()))
            else {
                continue;
            };
            read(bytes.read_chunk(&opened, footer.metadata(), number, chunk, needed.as_ref())?);
            roots.push(root);
        }
        // The reader gives columns in the order of the file.
        let mut order = roots.clone();
        order.sort_unstable();
        let source = |(index, field): (&usize, &Arc<Field>)| match constant(*index) {
            Some(identity) => ColumnSource::Identity(Arc::clone(identity), *index),
            None => {
                let root = footer.schema().index_of(field.name()).ok();
                root.and_then(|root| order.binary_search(&root).ok())
                    .map_or(ColumnSource::Nulls, |column| ColumnSource::File(column, LastTexts::default()))
            }
        };
        reader.columns = indices.iter().zip(schema.fields()).map(source).collect();
        let mask = ProjectionMask::roots(footer.parquet_schema(), roots);
        let mut rows = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, ArrowReaderMetadata::clone(&footer))
            .with_projection(mask)
            .with_row_groups(vec![number])
            .with_batch_size(batch_rows);
        if let Some(needed) = needed {
            // A mask would decompress the pages between those that are needed too, which were not read.
            rows = rows.with_row_selection(needed).with_row_selection_policy(RowSelectionPolicy::Selectors);
        }
        reader.reader = Some(rows.build()?);
        Ok(reader)
    }

    /// The footer of the file; None where it was not needed.
    pub const fn footer(&self) -> Option<&FileFooter> {
        self.footer.as_ref()
    }

    /// The next rows, packed as in the file; None after the last.
    pub fn packed(&mut self) -> Option<Result<PackedRows>> {
        if self.unread == 0 {
            return None;
        }
        let rows = self.rows();
        if rows.is_err() {
            self.unread = 0;
        }
        Some(rows.map_err(|error| cannot(&self.file, error)))
    }

    fn rows(&mut self) -> Result<PackedRows, ArrowError> {
        let read = match &mut self.reader {
            Some(reader) => match reader.next() {
                Some(batch) => Some(batch?),
                None => return Err(ArrowError::ParquetError("it has fewer rows than its footer says".into())),
            },
            None => None,
        };
        let rows = read.as_ref().map_or(self.unread.min(self.batch_rows), RecordBatch::num_rows);
        let column = |(source, field): (&mut ColumnSource, &Arc<Field>)| -> Result<PackedColumn, ArrowError> {
            match (source, &read) {
                (ColumnSource::File(column, texts), Some(batch)) => texts.packed(batch.column(*column)),
                (ColumnSource::Identity(identity, index), _) => Ok(PackedColumn::Constant(identity.value(*index))),
                _ => {
                    let null = ScalarValue::try_from(field.data_type());
                    Ok(PackedColumn::Constant(null.map_err(|error| ArrowError::ComputeError(error.to_string()))?))
                }
            }
        };
        let columns = self.columns.iter_mut().zip(self.schema.fields()).map(column).collect::<Result<_, _>>()?;
        self.unread = self.unread.saturating_sub(rows);
        Ok(PackedRows { rows, columns })
    }
}

impl Iterator for GroupReader {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = self.packed()?;
        let batch = rows.and_then(|rows| rows.record_batch(&self.schema).map_err(|error| cannot(&self.file, error)));
        Some(batch)
    }
}

/// The texts of a column as they were last read. Mostly the next rows have the same dictionary.
#[derive(Default)]
struct LastTexts(Option<(ArrayRef, Arc<StringViewArray>)>);

impl LastTexts {
    /// A column that was read, packed: text as ids in its dictionary.
    fn packed(&mut self, read: &ArrayRef) -> Result<PackedColumn, ArrowError> {
        let Some(read) = read.as_dictionary_opt::<Int32Type>() else {
            return Ok(PackedColumn::Array(Arc::clone(read)));
        };
        let values = match &self.0 {
            Some((dictionary, values)) if Arc::ptr_eq(dictionary, read.values()) => Arc::clone(values),
            _ => {
                let values = Arc::new(cast(read.values(), &DataType::Utf8View)?.as_string_view().clone());
                self.0 = Some((Arc::clone(read.values()), Arc::clone(&values)));
                values
            }
        };
        let keys = read.keys();
        // Keys are never negative, and mean nothing where they are NULL.
        let ids = UInt32Array::new(ScalarBuffer::from(keys.values().inner().clone()), keys.nulls().cloned());
        Ok(PackedColumn::Text { ids: Arc::new(ids), values })
    }
}

/// The rows of the blocks that are kept; None where these are all.
fn selection(blocks: &[RowBlock], keep: &[bool]) -> Option<RowSelection> {
    if blocks.len() != keep.len() || keep.iter().all(|keep| *keep) {
        return None;
    }
    let selector = |(block, keep): (&RowBlock, &bool)| match keep {
        true => RowSelector::select(block.rows),
        false => RowSelector::skip(block.rows),
    };
    Some(blocks.iter().zip(keep).map(selector).collect::<Vec<_>>().into())
}

fn cannot(file: &ParquetFile, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let path = file.path.display();
    if file.had_to_go.load(Ordering::Relaxed) {
        return Error::limit(format!(
            "{path} had to go while it was read: its rows were the oldest that PROBE_DISK held"
        ))
        .hint("ask again, for fewer of the oldest rows, or start the collector with a larger PROBE_DISK");
    }
    Error::failed(format!("cannot read {path}")).because(error)
}

/// The file's footer: readers of the same file share it, and it is not kept for longer than [`FileFooter`]s are.
fn footer(file: &ParquetFile, opened: &File) -> Result<Arc<ArrowReaderMetadata>, ParquetError> {
    let mut shared = file.footer.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(footer) = shared.upgrade() {
        return Ok(footer);
    }
    let metadata =
        ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Optional).parse_and_finish(opened)?;
    let described = metadata.file_metadata();
    let schema = parquet_to_arrow_schema(described.schema_descr(), described.key_value_metadata())?;
    let options = ArrowReaderOptions::new().with_schema(Arc::new(with_dictionaries(&schema)));
    let footer = Arc::new(ArrowReaderMetadata::try_new(Arc::new(metadata), options)?);
    *shared = Arc::downgrade(&footer);
    Ok(footer)
}

/// The schema with dictionaries for text, so that each text is read once and rows refer to it, as in the file.
fn with_dictionaries(schema: &Schema) -> Schema {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let field = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            Arc::new(field.as_ref().clone().with_data_type(dictionary.clone()))
        }
        _ => Arc::clone(field),
    };
    Schema::new_with_metadata(schema.fields().iter().map(field).collect::<Vec<_>>(), schema.metadata().clone())
}
