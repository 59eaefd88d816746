//! Rows that a command makes itself (`list`, `runs`, `tables`, `config`), shown by the same writers as a query's.

use std::io;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
    TimestampSecondArray,
};
use probe_common::error::Result;

use super::format::OutputFormat;
use super::print::unless_closed;
use super::table;
use super::terminal::Terminal;
use super::writer::io_error;

/// A column of text.
pub fn text<S: AsRef<str>>(values: impl IntoIterator<Item = Option<S>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<StringArray>())
}

/// A column of integers.
pub fn integers(values: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Int64Array>())
}

/// A column of booleans.
pub fn flags(values: impl IntoIterator<Item = bool>) -> ArrayRef {
    Arc::new(values.into_iter().map(Some).collect::<BooleanArray>())
}

/// A column of floats.
pub fn floats(values: impl IntoIterator<Item = Option<f64>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Float64Array>())
}

/// A column of points in time, nanoseconds since 1970.
pub fn times(values: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<TimestampNanosecondArray>().with_timezone("UTC"))
}

/// A column of points in time to the second, seconds since 1970.
pub fn coarse_times(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(values.into_iter().map(Some).collect::<TimestampSecondArray>().with_timezone("UTC"))
}

/// Writes named columns like [`show`]. Where a terminal is too narrow for all of them, columns of `optional` are left out of a
/// table, the first one first, until the others fit. Returns the names of those that were.
pub fn show_what_fits<'a>(
    mut columns: Vec<(&'a str, ArrayRef)>,
    optional: &[&str],
    format: OutputFormat,
) -> Result<Vec<&'a str>> {
    let mut left_out = Vec::new();
    if format == OutputFormat::Table {
        let terminal = Terminal::of_stdout();
        for name in optional {
            if table::fits(&columns, terminal)? {
                break;
            }
            if let Some(index) = columns.iter().position(|(column, _)| column == name) {
                left_out.push(columns.remove(index).0);
            }
        }
    }
    show(columns, format).map(|()| left_out)
}

/// Writes named columns, all of one length, to standard output.
pub fn show(columns: Vec<(&str, ArrayRef)>, format: OutputFormat) -> Result<()> {
    let columns = columns.into_iter().map(|(name, values)| (name, values, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).map_err(io_error)?;
    format.check_stdout()?;
    let written = format.writer(batch.schema(), Terminal::of_stdout(), Box::new(io::stdout()));
    unless_closed(written.and_then(|mut writer| writer.batch(&batch).and_then(|()| writer.finish()))).map(|_| ())
}
