//! What is known of a column without looking at its rows: smallest and largest value, and number of NULLs.

use arrow::array::AsArray;
use arrow::compute::{max, min};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use datafusion::common::ScalarValue;
use probe_proto::table::ColumnType;

use super::cells::Cells;
use super::offsets;
use super::schema::utc;
use super::times;

/// The range of one column of one batch or segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The bounds of the values that are not NULL.
    pub values: Values,
    /// Number of rows that are NULL.
    pub nulls: usize,
}

/// The smallest and largest value of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// Every row is NULL.
    None,
    /// Bounds of integers or timestamps.
    Ints(i64, i64),
    /// Bounds of floats, none of them NaN.
    Floats(f64, f64),
    /// Bounds that are not known: of text, booleans, and floats with a NaN among them (which has no generally agreed order).
    Unknown,
}

impl Range {
    /// The range of no rows.
    pub const EMPTY: Self = Self { values: Values::None, nulls: 0 };

    /// The range of `rows` rows that all have this value, as a Parquet footer would give it: without bounds of text.
    pub fn of_constant(value: &ScalarValue, rows: usize) -> Self {
        match value {
            value if value.is_null() => Self { values: Values::None, nulls: rows },
            ScalarValue::Int32(Some(value)) => {
                Self { values: Values::Ints(i64::from(*value), i64::from(*value)), nulls: 0 }
            }
            _ => Self { values: Values::Unknown, nulls: 0 },
        }
    }

    /// The range of `cells`, from a look at all rows.
    pub fn of(cells: &Cells, kind: ColumnType, rows: usize) -> Self {
        let nulls = cells.nulls(rows);
        if nulls == rows {
            return Self { values: Values::None, nulls };
        }
        let ints = |low: Option<i64>, high: Option<i64>| low.zip(high).map(|(low, high)| Values::Ints(low, high));
        let values = match (cells, kind) {
            (Cells::Constant { value, .. }, ColumnType::Int32 | ColumnType::Int64 | ColumnType::Timestamp) => {
                Some(Values::Ints(*value, *value))
            }
            (Cells::Offsets { base, offsets }, _) => offsets::bounds(offsets).map(|(low, high)| {
                let [low, high] = [low, high].map(|offset| base.wrapping_add(i64::from(offset)));
                match kind {
                    ColumnType::Float64 => Values::Floats(times::float(low), times::float(high)),
                    _ => Values::Ints(low, high),
                }
            }),
            (Cells::Array(array), ColumnType::Int32) => {
                let array = array.as_primitive::<Int32Type>();
                ints(min(array).map(i64::from), max(array).map(i64::from))
            }
            (Cells::Array(array), ColumnType::Int64) => {
                let array = array.as_primitive::<Int64Type>();
                ints(min(array), max(array))
            }
            (Cells::Array(array), ColumnType::Timestamp) => {
                let array = array.as_primitive::<TimestampNanosecondType>();
                ints(min(array), max(array))
            }
            (Cells::Array(array), ColumnType::Float64) => {
                let array = array.as_primitive::<Float64Type>();
                // Arrow's order puts NaN at the ends, so that a NaN among the values is one of the bounds.
                match min(array).zip(max(array)) {
                    Some((low, high)) if !low.is_nan() && !high.is_nan() => Some(Values::Floats(low, high)),
                    _ => None,
                }
            }
            _ => None,
        };
        Self { values: values.unwrap_or(Values::Unknown), nulls }
    }

    /// The range of the rows of both.
    pub fn union(self, other: Self) -> Self {
        let values = match (self.values, other.values) {
            (Values::None, values) | (values, Values::None) => values,
            (Values::Ints(a, b), Values::Ints(c, d)) => Values::Ints(a.min(c), b.max(d)),
            (Values::Floats(a, b), Values::Floats(c, d)) => Values::Floats(a.min(c), b.max(d)),
            _ => Values::Unknown,
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
            Values::Ints(low, high) => Some((scalar(low)?, scalar(high)?)),
            Values::Floats(low, high) => Some((ScalarValue::from(low), ScalarValue::from(high))),
            Values::None | Values::Unknown => None,
        }
    }
}
