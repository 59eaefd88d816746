//! Exact sums of a segment's float columns. A file has them in its notes, so that a query need not read it for a sum.
//!
//! Times are whole multiples of 1/[`TIMES_PER_SECOND`] second. As long as the values add up to less than 2^53 of those,
//! floats hold every partial sum without rounding: the sum is the same in any order of adding.

use arrow::array::{Array, AsArray};
use arrow::datatypes::Float64Type;
use probe_proto::TIMES_PER_SECOND;
use probe_proto::table::{ColumnType, Table};

use super::cells::Cells;
use super::segment::Segment;

/// Whole multiples up to this number have exact floats.
const EXACT: f64 = (1_u64 << 53) as f64;

/// Index among the table's own columns, and sum in multiples. A column without an exact sum is missing.
pub(super) type Sums = Box<[(usize, i64)]>;

/// The sums of a segment's columns.
pub(super) fn of(segment: &Segment, table: &Table) -> Sums {
    let floats = table.columns.iter().enumerate().filter(|(_, column)| column.kind == ColumnType::Float64);
    floats.filter_map(|(index, _)| Some((index, sum(segment, index)?))).collect()
}

/// The sums of the rows of both.
pub(super) fn with(one: &Sums, other: &Sums) -> Sums {
    let both = |(index, sum): &(usize, i64)| {
        let more = other.iter().find(|(column, _)| column == index)?.1;
        // Each of the two may be near the limit, so that their sum may exceed it.
        let sum = sum.checked_add(more).filter(|sum| (sum.unsigned_abs() as f64) < EXACT / 2.0)?;
        Some((*index, sum))
    };
    one.iter().filter_map(both).collect()
}

/// The sum in the column's own unit, such as seconds.
pub(super) fn value(sum: i64) -> f64 {
    sum as f64 / TIMES_PER_SECOND as f64
}

fn sum(segment: &Segment, index: usize) -> Option<i64> {
    let (mut sum, mut size) = (0.0, 0.0);
    for batch in &segment.batches {
        let array = match &batch.cells[index] {
            Cells::Nulls => continue,
            Cells::Array(array) => array.as_primitive_opt::<Float64Type>()?,
            _ => return None,
        };
        for (row, value) in array.values().iter().enumerate() {
            if array.is_null(row) {
                continue;
            }
            let multiple = value * TIMES_PER_SECOND as f64;
            // A NaN is not equal to itself rounded, and the sign of a negative zero would be lost in the sum.
            if multiple.round_ties_even() != multiple || (multiple == 0.0 && multiple.is_sign_negative()) {
                return None;
            }
            sum += multiple;
            size += multiple.abs();
        }
    }
    (size < EXACT / 2.0).then_some(sum as i64)
}
