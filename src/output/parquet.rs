//! `--format parquet`: a Parquet file compressed with zstd. A row group is written when it is full, so that the memory does
//! not grow with the answer.

use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::names::{distinct, renamed};
use super::writer::{AnswerWriter, BoxedOutput};

/// Rows of a row group, which a reader's filter can skip as a whole.
const MAX_GROUP_ROWS: usize = 1 << 17;

/// Bytes of a row group before compression, where its rows are large: they are held in memory.
const MAX_GROUP_BYTES: usize = 32 << 20;

/// Writes Parquet.
pub(super) struct ParquetWriter<'a> {
    /// None once it has been finished.
    writer: Option<ArrowWriter<BoxedOutput<'a>>>,
    schema: SchemaRef,
}

impl<'a> ParquetWriter<'a> {
    /// Fails where the answer has a type that Parquet has not.
    pub(super) fn new(schema: &SchemaRef, out: BoxedOutput<'a>) -> io::Result<Self> {
        let schema = distinct(schema);
        if let Some(field) = schema.fields().iter().find(|field| matches!(field.data_type(), DataType::Interval(_))) {
            let name = field.name();
            return Err(io::Error::other(format!(
                "column {name} is an interval, which Parquet does not know: CAST({name} AS TEXT)"
            )));
        }
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(MAX_GROUP_ROWS))
            .set_max_row_group_bytes(Some(MAX_GROUP_BYTES))
            .build();
        let writer = ArrowWriter::try_new(out, Arc::clone(&schema), Some(properties)).map_err(parquet_error)?;
        Ok(Self { writer: Some(writer), schema })
    }
}

impl AnswerWriter for ParquetWriter<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let Some(writer) = &mut self.writer else { return Err(io::Error::other("the file has been finished")) };
        let batch = renamed(batch, &self.schema)?;
        writer.write(&batch).map_err(parquet_error)
    }

    fn finish(&mut self) -> io::Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        writer.into_inner().map_err(parquet_error)?.flush()
    }
}

/// A Parquet error as an input/output error: a closed pipe stays recognisable.
fn parquet_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error.to_string()),
        },
        other => io::Error::other(other.to_string()),
    }
}
