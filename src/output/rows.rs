//! Rows that a command makes itself (`list`, `runs`, `tables`, `config`), shown by the same writers as a query's.

use std::io;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray};

use super::{Format, Terminal, unless_closed};
use crate::error::Result;

/// A column of text.
pub fn text<S: AsRef<str>>(values: impl IntoIterator<Item = Option<S>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<StringArray>())
}

/// A column of integers.
pub fn integers(values: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Int64Array>())
}

/// A column of floats.
pub fn floats(values: impl IntoIterator<Item = Option<f64>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Float64Array>())
}

/// A column of points in time, nanoseconds since 1970.
pub fn times(values: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<TimestampNanosecondArray>().with_timezone("UTC"))
}

/// Writes named columns, all of one length, to standard output.
pub fn show(columns: Vec<(&str, ArrayRef)>, format: Format) -> Result<()> {
    let columns = columns.into_iter().map(|(name, values)| (name, values, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).map_err(super::io_error)?;
    format.check_stdout()?;
    let written = format.writer(batch.schema(), Terminal::of_stdout(), Box::new(io::stdout()));
    unless_closed(written.and_then(|mut writer| writer.batch(&batch).and_then(|()| writer.finish()))).map(|_| ())
}
