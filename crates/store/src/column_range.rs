//! What is known of a column without looking at its rows: smallest and largest value, and number of NULLs.

use arrow::array::AsArray;
use arrow::compute::{max, min};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use datafusion::common::ScalarValue;
use probe_proto::table::ColumnType;

use super::cells::ColumnCells;
use super::offsets;
use super::schema::utc;
use super::times;

/// The range of one column of one batch or segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColumnRange {
    /// The bounds of the values that are not NULL.
    pub values: ValueBounds,
    /// Number of rows that are NULL.
    pub nulls: usize,
}

/// The smallest and largest value of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueBounds {
    /// Every row is NULL.
    None,
    /// Bounds of integers or timestamps.
    Ints(i64, i64),
    /// Bounds of floats, none of them NaN.
    Floats(f64, f64),
    /// Bounds that are not known: of text, booleans, and floats with a NaN among them (which has no generally agreed order).
    Unknown,
}

impl ColumnRange {
    /// The range of no rows.
    pub const EMPTY: Self = Self { values: ValueBounds::None, nulls: 0 };

    /// The range of `rows` rows that all have this value, as a Parquet footer would give it: without bounds of text.
    pub fn of_constant(value: &ScalarValue, rows: usize) -> Self {
        match value {
            value if value.is_null() => Self { values: ValueBounds::None, nulls: rows },
            ScalarValue::Int32(Some(value)) => {
                Self { values: ValueBounds::Ints(i64::from(*value), i64::from(*value)), nulls: 0 }
            }
            _ => Self { values: ValueBounds::Unknown, nulls: 0 },
        }
    }

    /// The range of `cells`, from a look at all rows.
    pub fn of(cells: &ColumnCells, kind: ColumnType, rows: usize) -> Self {
        let nulls = cells.nulls(rows);
        if nulls == rows {
            return Self { values: ValueBounds::None, nulls };
        }
        let ints = |low: Option<i64>, high: Option<i64>| low.zip(high).map(|(low, high)| ValueBounds::Ints(low, high));
        let values = match (cells, kind) {
            (ColumnCells::Constant { value, .. }, ColumnType::Int32 | ColumnType::Int64 | ColumnType::Timestamp) => {
                Some(ValueBounds::Ints(*value, *value))
            }
            (ColumnCells::Offsets { base, offsets }, _) => offsets::bounds(offsets).map(|(low, high)| {
                let [low, high] = [low, high].map(|offset| base.wrapping_add(i64::from(offset)));
                match kind {
                    ColumnType::Float64 => ValueBounds::Floats(times::float(low), times::float(high)),
                    _ => ValueBounds::Ints(low, high),
                }
            }),
            (ColumnCells::Array(array), ColumnType::Int32) => {
                let array = array.as_primitive::<Int32Type>();
                ints(min(array).map(i64::from), max(array).map(i64::from))
            }
            (ColumnCells::Array(array), ColumnType::Int64) => {
                let array = array.as_primitive::<Int64Type>();
                ints(min(array), max(array))
            }
            (ColumnCells::Array(array), ColumnType::Timestamp) => {
                let array = array.as_primitive::<TimestampNanosecondType>();
                ints(min(array), max(array))
            }
            (ColumnCells::Array(array), ColumnType::Float64) => {
                let array = array.as_primitive::<Float64Type>();
                // Arrow's order puts NaN at the ends, so that a NaN among the values is one of the bounds.
                match min(array).zip(max(array)) {
                    Some((low, high)) if !low.is_nan() && !high.is_nan() => Some(ValueBounds::Floats(low, high)),
                    _ => None,
                }
            }
            _ => None,
        };
        Self { values: values.unwrap_or(ValueBounds::Unknown), nulls }
    }

    /// The range of the rows of both.
    pub fn union(self, other: Self) -> Self {
        let values = match (self.values, other.values) {
            (ValueBounds::None, values) | (values, ValueBounds::None) => values,
            (ValueBounds::Ints(a, b), ValueBounds::Ints(c, d)) => ValueBounds::Ints(a.min(c), b.max(d)),
            (ValueBounds::Floats(a, b), ValueBounds::Floats(c, d)) => ValueBounds::Floats(a.min(c), b.max(d)),
            _ => ValueBounds::Unknown,
        };
        Self { values, nulls: self.nulls + other.nulls }
    }

    /// The smallest and largest value in SQL's types; None where they are not known or there are none.
    pub fn bounds(&self, kind: ColumnType) -> Option<(ScalarValue, ScalarValue)> {
        let scalar = |value: i64| match kind {
            ColumnType::Int32 => Some(ScalarValue::Int32(Some(i32::try_from(value).ok()?))),
            ColumnType::Int64 => Some(ScalarValue::Int64(Some(value))),
            ColumnType::Timestamp => Some(ScalarValue::TimestampNanosecond(Some(value), Some(utc()))),
            _ => None,
        };
        match self.values {
            ValueBounds::Ints(low, high) => Some((scalar(low)?, scalar(high)?)),
            ValueBounds::Floats(low, high) => Some((ScalarValue::from(low), ScalarValue::from(high))),
            ValueBounds::None | ValueBounds::Unknown => None,
        }
    }
}
