//! Sums of a segment's float columns that are exact, so that a file can say them and nobody need read it for them.
//!
//! Times are whole multiples of [`TIMES_PER_SECOND`]'s part of a second. As long as what is added up stays below 2^53 of
//! those, floats hold every partial sum without rounding: the sum is the same in whatever order it is made.

use arrow::array::{Array, AsArray};
use arrow::datatypes::Float64Type;
use probe_proto::TIMES_PER_SECOND;
use probe_proto::table::{ColumnType, Table};

use super::cells::Cells;
use super::segment::Segment;

/// Whole multiples up to here are floats.
const EXACT: f64 = (1_u64 << 53) as f64;

/// By place among the table's own columns: the sum in multiples. A column that is not there has no exact sum.
pub(super) type Sums = Box<[(usize, i64)]>;

/// Those of a segment.
pub(super) fn of(segment: &Segment, table: &Table) -> Sums {
    let floats = table.columns.iter().enumerate().filter(|(_, column)| column.kind == ColumnType::Float64);
    floats.filter_map(|(place, _)| Some((place, sum(segment, place)?))).collect()
}

/// Those of both together.
pub(super) fn with(one: &Sums, other: &Sums) -> Sums {
    let both = |(place, sum): &(usize, i64)| {
        let more = other.iter().find(|(of, _)| of == place)?.1;
        // Both may have come near the limit from either side.
        let sum = sum.checked_add(more).filter(|sum| (sum.unsigned_abs() as f64) < EXACT / 2.0)?;
        Some((*place, sum))
    };
    one.iter().filter_map(both).collect()
}

/// Seconds, or whatever the column is in.
pub(super) fn value(sum: i64) -> f64 {
    sum as f64 / TIMES_PER_SECOND as f64
}

fn sum(segment: &Segment, place: usize) -> Option<i64> {
    let (mut sum, mut size) = (0.0, 0.0);
    for batch in &segment.batches {
        let array = match &batch.cells[place] {
            Cells::Nulls => continue,
            Cells::Array(array) => array.as_primitive_opt::<Float64Type>()?,
            _ => return None,
        };
        for (row, value) in array.values().iter().enumerate() {
            if array.is_null(row) {
                continue;
            }
            let multiple = value * TIMES_PER_SECOND as f64;
            // What is not finite is not equal to itself rounded; and zero has a sign that a sum would lose.
            if multiple.round_ties_even() != multiple || (multiple == 0.0 && multiple.is_sign_negative()) {
                return None;
            }
            sum += multiple;
            size += multiple.abs();
        }
    }
    (size < EXACT / 2.0).then_some(sum as i64)
}
