//! A JSON object a line, as they come. NULL is null, timestamps are RFC 3339; NaN and infinities, which JSON lacks, null.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;

use super::Sink;
use crate::error::Result;

pub(super) struct Ndjson;

impl Ndjson {
    pub(super) fn new(_schema: &SchemaRef) -> Self {
        Self
    }
}

impl Sink for Ndjson {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<bool> {
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(out);
        writer.write(batch)?;
        writer.finish()?;
        Ok(true)
    }

    fn finish(&mut self, _out: &mut dyn Write) -> Result<()> {
        Ok(())
    }
}
