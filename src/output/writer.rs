//! [`AnswerWriter`]: the interface of writers of rows, whatever their format.

use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;

/// The output of a writer.
pub type BoxedOutput<'a> = Box<dyn Write + Send + 'a>;

/// Takes an answer batch by batch and writes it somewhere.
pub trait AnswerWriter {
    /// Writes a batch of the answer's schema.
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()>;
    /// Ends the answer, and writes rows that were held back.
    fn finish(&mut self) -> io::Result<()>;
}

/// The error of a write as an input/output error: a closed pipe stays recognisable.
pub(super) fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// How times are written for programs (RFC 3339, nanoseconds kept): without a zone, which here means UTC, and with one.
pub(super) fn time_formats(schema: &Schema) -> (&'static str, &'static str) {
    const UTC: &str = "%Y-%m-%dT%H:%M:%S%.fZ";
    let is_utc = |kind: &DataType| match kind {
        DataType::Timestamp(_, Some(zone)) => matches!(&**zone, "UTC" | "+00:00" | "Z" | "GMT"),
        // A nested type may hide another zone.
        kind => !kind.is_nested(),
    };
    let zoned =
        if schema.fields().iter().all(|field| is_utc(field.data_type())) { UTC } else { "%Y-%m-%dT%H:%M:%S%.f%:z" };
    (UTC, zoned)
}
