//! Comma-separated values with a header, as they come. Timestamps are RFC 3339, NULL is empty.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::csv::WriterBuilder;
use arrow::datatypes::SchemaRef;

use super::Sink;
use crate::error::Result;

pub(super) struct Csv {
    schema: SchemaRef,
    header: bool,
}

impl Csv {
    pub(super) fn new(schema: &SchemaRef) -> Self {
        Self { schema: schema.clone(), header: true }
    }
}

impl Sink for Csv {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<bool> {
        WriterBuilder::new().with_header(std::mem::take(&mut self.header)).build(out).write(batch)?;
        Ok(true)
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<()> {
        if self.header {
            self.batch(&RecordBatch::new_empty(self.schema.clone()), out)?;
        }
        Ok(())
    }
}
