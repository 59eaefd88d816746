//! `--format json` (an array of objects) and `ndjson` (an object a line). Every column is in every object; NULL and what
//! JSON has no number for (NaN, infinities) are null; times are RFC 3339.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::json::writer::{JsonFormat, LineDelimited, Writer as ArrowWriter, WriterBuilder};

use super::names::{distinct, renamed};
use super::writer::{AnswerWriter, BoxedOutput, io_error, time_formats};

/// Writes JSON of either shape.
pub(super) struct JsonWriter<W: Write, F: JsonFormat> {
    writer: ArrowWriter<W, F>,
    schema: SchemaRef,
}

/// An array with a row a line, for people and grep.
#[derive(Debug, Default)]
pub(super) struct JsonArray;

impl JsonFormat for JsonArray {
    fn start_stream<W: Write>(&self, out: &mut W) -> Result<(), ArrowError> {
        Ok(out.write_all(b"[")?)
    }

    fn start_row<W: Write>(&self, out: &mut W, first: bool) -> Result<(), ArrowError> {
        if first { Ok(()) } else { Ok(out.write_all(b",\n ")?) }
    }

    fn end_stream<W: Write>(&self, out: &mut W) -> Result<(), ArrowError> {
        Ok(out.write_all(b"]\n")?)
    }
}

impl<'a> JsonWriter<BoxedOutput<'a>, JsonArray> {
    pub(super) fn array(schema: &SchemaRef, out: BoxedOutput<'a>) -> Self {
        Self { writer: builder(schema).build(out), schema: distinct(schema) }
    }
}

impl<'a> JsonWriter<BoxedOutput<'a>, LineDelimited> {
    pub(super) fn lines(schema: &SchemaRef, out: BoxedOutput<'a>) -> Self {
        Self { writer: builder(schema).build(out), schema: distinct(schema) }
    }
}

fn builder(schema: &SchemaRef) -> WriterBuilder {
    let (naive, zoned) = time_formats(schema);
    let builder = WriterBuilder::new().with_explicit_nulls(true);
    builder.with_timestamp_format(naive.into()).with_timestamp_tz_format(zoned.into())
}

impl<W: Write, F: JsonFormat> AnswerWriter for JsonWriter<W, F> {
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let batch = renamed(batch, &self.schema)?;
        self.writer.write(&batch).map_err(io_error)?;
        self.writer.get_mut().flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.writer.finish().map_err(io_error)?;
        self.writer.get_mut().flush()
    }
}
