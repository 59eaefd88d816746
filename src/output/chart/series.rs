//! A column of numbers of an answer.

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use probe_common::error::Result;

use crate::output::writer::io_error;

/// A column of numbers to draw; None for a value that can't be drawn.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) values: Vec<Option<f64>>,
}

/// A column's numbers; times are in the column's unit.
pub(super) fn values(column: &ArrayRef) -> Result<Vec<Option<f64>>> {
    if matches!(column.data_type(), DataType::Timestamp(..)) {
        let whole = cast(column, &DataType::Int64).map_err(io_error)?;
        return Ok(whole.as_primitive::<Int64Type>().iter().map(|value| value.map(|value| value as f64)).collect());
    }
    let floats = cast(column, &DataType::Float64).map_err(io_error)?;
    Ok(floats.as_primitive::<Float64Type>().iter().map(|value| value.filter(|value| value.is_finite())).collect())
}

/// The least and the greatest value.
pub(super) fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| match bounds {
        None => Some((value, value)),
        Some((least, most)) => Some((f64::min(least, value), f64::max(most, value))),
    })
}

/// The number of values that are not drawn, in words.
pub(super) fn left_out(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => "  (1 value is NULL or not finite)".to_owned(),
        count => format!("  ({count} values are NULL or not finite)"),
    }
}
