//! One array of objects, as the rows come. NULL is null, timestamps are RFC 3339; NaN and infinities are null.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::Sink;
use super::ndjson::Ndjson;
use crate::error::Result;

pub(super) struct Json {
    lines: Ndjson,
    rows: usize,
}

impl Json {
    pub(super) fn new(schema: &SchemaRef) -> Self {
        Self { lines: Ndjson::new(schema), rows: 0 }
    }
}

impl Sink for Json {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<bool> {
        let mut lines = Vec::new();
        self.lines.batch(batch, &mut lines)?;
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            out.write_all(if self.rows == 0 { b"[\n" } else { b",\n" })?;
            out.write_all(line)?;
            self.rows += 1;
        }
        Ok(true)
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<()> {
        out.write_all(if self.rows == 0 { b"[]\n" } else { b"\n]\n" })?;
        Ok(())
    }
}
