//! `--format json` (an array of objects) and `ndjson` (an object a line). Every column is in every object; NULL and what
//! JSON has no number for (NaN, infinities) are null; times are RFC 3339.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::json::writer::{JsonArray, JsonFormat, LineDelimited, Writer as ArrowWriter, WriterBuilder};

use super::{Writer, io_error, time_formats};

/// Writes JSON of either shape.
pub(super) struct JsonWriter<W: Write, F: JsonFormat> {
    writer: ArrowWriter<W, F>,
    schema: SchemaRef,
    /// What ends the whole.
    end: &'static str,
}

impl<'a> JsonWriter<Box<dyn Write + 'a>, JsonArray> {
    pub(super) fn array(schema: &SchemaRef, out: Box<dyn Write + 'a>) -> Self {
        Self { writer: builder(schema).build(out), schema: distinct(schema), end: "\n" }
    }
}

impl<'a> JsonWriter<Box<dyn Write + 'a>, LineDelimited> {
    pub(super) fn lines(schema: &SchemaRef, out: Box<dyn Write + 'a>) -> Self {
        Self { writer: builder(schema).build(out), schema: distinct(schema), end: "" }
    }
}

fn builder(schema: &SchemaRef) -> WriterBuilder {
    let (naive, zoned) = time_formats(schema);
    let builder = WriterBuilder::new().with_explicit_nulls(true);
    builder.with_timestamp_format(naive.into()).with_timestamp_tz_format(zoned.into())
}

impl<W: Write, F: JsonFormat> Writer for JsonWriter<W, F> {
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), batch.columns().to_vec()).map_err(io_error)?;
        self.writer.write(&batch).map_err(io_error)?;
        self.writer.get_mut().flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.writer.finish().map_err(io_error)?;
        self.writer.get_mut().write_all(self.end.as_bytes())?;
        self.writer.get_mut().flush()
    }
}

/// A second column of one name (SELECT a.step, b.step …) would overwrite the first in an object: it becomes `step_2`.
fn distinct(schema: &SchemaRef) -> SchemaRef {
    let mut taken: HashSet<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let mut seen = HashSet::new();
    let fields = schema.fields().iter().map(|field| {
        if seen.insert(field.name().clone()) {
            return Arc::clone(field);
        }
        let mut number = 2;
        let name = loop {
            let name = format!("{}_{number}", field.name());
            if taken.insert(name.clone()) {
                break name;
            }
            number += 1;
        };
        Arc::new(Field::clone(field).with_name(name))
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}
