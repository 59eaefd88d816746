//! Exact sums of float columns, so that a query need not read rows for a sum. A file has them in its notes.
//!
//! Times are whole multiples of 1/[`TIMES_PER_SECOND`] second. As long as the values add up to less than 2^53 of those,
//! floats hold every partial sum without rounding: the sum is the same in any order of adding.

use arrow::array::{Array, AsArray, Float64Array};
use arrow::datatypes::Float64Type;
use probe_proto::TIMES_PER_SECOND;
use probe_proto::table::{ColumnType, Table};

use super::cells::Cells;

/// Whole multiples up to this number have exact floats.
const EXACT: f64 = (1_u64 << 53) as f64;
/// Added to a float of at most 2^51 and subtracted again, it leaves the nearest whole number.
const TO_WHOLE: f64 = (3_u64 << 51) as f64;
/// Values that are added up side by side.
const LANES: usize = 8;

/// Index among the table's own columns, and sum in multiples. A column without an exact sum is missing.
pub(super) type Sums = Box<[(usize, i64)]>;

/// The sums of the columns of some rows.
pub(super) fn of(cells: &[Cells], table: &Table) -> Sums {
    let floats = table.columns.iter().zip(cells).enumerate();
    let floats = floats.filter(|(_, (column, _))| column.kind == ColumnType::Float64);
    floats.filter_map(|(index, (_, cells))| Some((index, sum(cells)?))).collect()
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

/// The sum of the column with this index among the table's own, in its unit, such as seconds; None where it is not known.
pub(super) fn value(sums: &Sums, own: usize) -> Option<f64> {
    let (_, sum) = sums.iter().find(|(column, _)| *column == own)?;
    Some(*sum as f64 / TIMES_PER_SECOND as f64)
}

fn sum(cells: &Cells) -> Option<i64> {
    match cells {
        Cells::Nulls => Some(0),
        Cells::Array(array) => sum_of(array.as_primitive_opt::<Float64Type>()?),
        _ => None,
    }
}

fn sum_of(array: &Float64Array) -> Option<i64> {
    let mut lanes = PartialSums::default();
    if array.null_count() == 0 {
        let (chunks, rest) = array.values().as_chunks::<LANES>();
        chunks.iter().for_each(|chunk| lanes.add(chunk));
        lanes.add_few(rest.iter().copied());
    } else {
        lanes.add_few(array.iter().flatten());
    }
    lanes.sum()
}

/// Partial sums. Where all values are whole, each of them is exact, and so is their sum.
#[derive(Default)]
struct PartialSums {
    sums: [f64; LANES],
    sizes: [f64; LANES],
    /// Not 0 where a value is no whole multiple, or a negative zero, whose sign would be lost in the sum.
    others: [u64; LANES],
}

impl PartialSums {
    fn add(&mut self, values: &[f64; LANES]) {
        for (lane, value) in values.iter().enumerate() {
            let multiple = value * TIMES_PER_SECOND as f64;
            // The difference of a whole number is 0, that of a NaN or an infinite number is NaN.
            let difference = ((multiple + TO_WHOLE) - TO_WHOLE) - multiple;
            self.others[lane] |= difference.abs().to_bits() | u64::from(value.to_bits() == (-0.0_f64).to_bits());
            self.sums[lane] += multiple;
            self.sizes[lane] += multiple.abs();
        }
    }

    fn add_few(&mut self, values: impl Iterator<Item = f64>) {
        for value in values {
            let mut lanes = [0.0; LANES];
            lanes[0] = value;
            self.add(&lanes);
        }
    }

    fn sum(self) -> Option<i64> {
        let is_whole = self.others.iter().all(|other| *other == 0);
        // Larger values have other neighbours than whole numbers, so that TO_WHOLE says nothing of them.
        let size: f64 = self.sizes.iter().sum();
        (is_whole && size < EXACT / 4.0).then(|| self.sums.iter().sum::<f64>() as i64)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The sum in plain words: added up in integers.
    fn plain(array: &Float64Array) -> Option<i64> {
        let mut sum = 0_i64;
        let mut size = 0_f64;
        for value in array.iter().flatten() {
            let multiple = value * TIMES_PER_SECOND as f64;
            if multiple.round_ties_even() != multiple || value.to_bits() == (-0.0_f64).to_bits() {
                return None;
            }
            size += multiple.abs();
            sum = sum.checked_add(multiple as i64)?;
        }
        (size < EXACT / 4.0).then_some(sum)
    }

    fn value() -> impl Strategy<Value = f64> {
        let time = |multiple: i64| multiple as f64 / TIMES_PER_SECOND as f64;
        prop_oneof![
            200 => (-1_000_000_i64..100_000_000).prop_map(time),
            10 => Just(0.0),
            1 => Just(-0.0),
            1 => Just(f64::NAN),
            1 => Just(f64::NEG_INFINITY),
            1 => Just(0.1),
            1 => Just(1e300),
            1 => (0..1_i64 << 51).prop_map(time),
            1 => Just(time(1).next_up()),
        ]
    }

    proptest! {
        #[test]
        fn sums_are_those_of_integers(values in prop::collection::vec(prop::option::weighted(0.95, value()), 0..40)) {
            let some: Vec<f64> = values.iter().flatten().copied().collect();
            for array in [Float64Array::from(some), Float64Array::from(values)] {
                prop_assert_eq!(sum_of(&array), plain(&array));
            }
        }
    }
}
