//! `--format arrow`: an Arrow IPC stream, each batch written as it comes.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::StreamWriter;

use super::names::{distinct, renamed};
use super::writer::{AnswerWriter, BoxedOutput, io_error};

/// Writes an Arrow IPC stream.
pub(super) struct IpcWriter<'a> {
    stream: StreamWriter<BoxedOutput<'a>>,
    schema: SchemaRef,
}

impl<'a> IpcWriter<'a> {
    /// Writes the schema at once, so that an answer without rows has its columns.
    pub(super) fn new(schema: &SchemaRef, out: BoxedOutput<'a>) -> io::Result<Self> {
        let schema = distinct(schema);
        let stream = StreamWriter::try_new(out, &schema).map_err(io_error)?;
        Ok(Self { stream, schema })
    }
}

impl AnswerWriter for IpcWriter<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let batch = renamed(batch, &self.schema)?;
        self.stream.write(&batch).map_err(io_error)?;
        self.stream.get_mut().flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream.finish().map_err(io_error)?;
        self.stream.get_mut().flush()
    }
}
