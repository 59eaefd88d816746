//! `--format csv`: a header line, a line a row, values exact; NULL is empty.

use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::csv::WriterBuilder;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::writer::{AnswerWriter, BoxedOutput, io_error, time_formats};

/// Writes CSV.
pub(super) struct CsvWriter<'a> {
    out: BoxedOutput<'a>,
    schema: SchemaRef,
    begun: bool,
}

impl<'a> CsvWriter<'a> {
    pub(super) fn new(schema: SchemaRef, out: BoxedOutput<'a>) -> Self {
        Self { out, schema, begun: false }
    }

    /// A writer of rows that follow others of the same columns: it writes no header.
    pub(super) fn continued(schema: SchemaRef, out: BoxedOutput<'a>) -> Self {
        Self { out, schema, begun: true }
    }
}

impl AnswerWriter for CsvWriter<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let (naive, zoned) = time_formats(&self.schema);
        let builder = WriterBuilder::new().with_header(!self.begun);
        let builder = builder.with_timestamp_format(naive.into()).with_timestamp_tz_format(zoned.into());
        self.begun = true;
        // Rows are written to memory first: arrow's writer turns a closed pipe into text.
        let mut text = Vec::new();
        builder.build(&mut text).write(&flat(batch)?).map_err(io_error)?;
        self.out.write_all(&text)?;
        self.out.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        if !self.begun {
            // The header is written with the first batch, and an answer without rows has one too.
            self.batch(&RecordBatch::new_empty(Arc::clone(&self.schema)))?;
        }
        Ok(())
    }
}

/// Lists and structures as text, since CSV has no shape for them.
fn flat(batch: &RecordBatch) -> io::Result<RecordBatch> {
    let schema = batch.schema();
    if !schema.fields().iter().any(|field| field.data_type().is_nested()) {
        return Ok(batch.clone());
    }
    let (mut fields, mut columns) = (Vec::new(), Vec::<ArrayRef>::new());
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        if !field.data_type().is_nested() {
            fields.push(Arc::clone(field));
            columns.push(Arc::clone(column));
            continue;
        }
        let options = FormatOptions::new();
        let formatter = ArrayFormatter::try_new(column, &options).map_err(io_error)?;
        let texts = (0..column.len()).map(|row| column.is_valid(row).then(|| formatter.value(row).to_string()));
        columns.push(Arc::new(texts.collect::<StringArray>()));
        fields.push(Arc::new(Field::new(field.name(), DataType::Utf8, true)));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(io_error)
}
