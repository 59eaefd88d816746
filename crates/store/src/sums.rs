//! Exact sums of float columns, so that a query need not read rows for a sum. A file has them in its notes.
//!
//! Times are whole multiples of a fraction of a second ([`times`]). As long as the values add up to less than 2^53 of those,
//! floats hold every partial sum without rounding: the sum is the same in any order of adding.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Float64Array};
use arrow::datatypes::{Float64Type, UInt8Type, UInt16Type, UInt32Type};
use probe_proto::table::{ColumnType, Table};

use super::cells::ColumnCells;
use super::times;

/// Whole multiples up to this number have exact floats.
const EXACT: f64 = (1_u64 << 53) as f64;

/// Index among the table's own columns, and sum in multiples. A column without an exact sum is missing.
pub(super) type ExactSums = Box<[(usize, i64)]>;

/// The sums of the columns of some rows.
pub(super) fn of_columns(cells: &[ColumnCells], table: &Table) -> ExactSums {
    let floats = table.columns.iter().zip(cells).enumerate();
    let floats = floats.filter(|(_, (column, _))| column.kind == ColumnType::Float64);
    floats.filter_map(|(index, (_, cells))| Some((index, sum(cells)?))).collect()
}

/// The sums of the rows of both.
pub(super) fn add(one: &ExactSums, other: &ExactSums) -> ExactSums {
    let both = |(index, sum): &(usize, i64)| {
        let more = other.iter().find(|(column, _)| column == index)?.1;
        // Each of the two may be near the limit, so that their sum may exceed it.
        let sum = sum.checked_add(more).filter(|sum| (sum.unsigned_abs() as f64) < EXACT / 2.0)?;
        Some((*index, sum))
    };
    one.iter().filter_map(both).collect()
}

/// The sum of the column with this index among the table's own, in its unit, such as seconds; None where it is not known.
pub(super) fn value(sums: &ExactSums, own: usize) -> Option<f64> {
    let (_, sum) = sums.iter().find(|(column, _)| *column == own)?;
    Some(times::float(*sum))
}

fn sum(cells: &ColumnCells) -> Option<i64> {
    match cells {
        ColumnCells::Nulls => Some(0),
        ColumnCells::Offsets { base, offsets } => sum_of_offsets(offsets, *base),
        ColumnCells::Array(array) => sum_of(array.as_primitive_opt::<Float64Type>()?),
        _ => None,
    }
}

/// The sum of times, in multiples.
fn sum_of_offsets(offsets: &ArrayRef, base: i64) -> Option<i64> {
    fn sum<T: ArrowPrimitiveType<Native: Into<u64>>>(offsets: &ArrayRef) -> Option<u64> {
        let offsets = offsets.as_primitive_opt::<T>()?;
        let values = offsets.values().iter().map(|offset| Into::<u64>::into(*offset));
        Some(match offsets.nulls() {
            None => values.sum(),
            Some(valid) => values.zip(valid).map(|(value, valid)| if valid { value } else { 0 }).sum(),
        })
    }
    let offset_sum =
        sum::<UInt8Type>(offsets).or_else(|| sum::<UInt16Type>(offsets)).or_else(|| sum::<UInt32Type>(offsets))?;
    let bases = base.checked_mul((offsets.len() - offsets.null_count()) as i64)?;
    // Partial sums are not larger than this, in any order of adding.
    let size = bases.unsigned_abs().checked_add(offset_sum)?;
    ((size as f64) < EXACT / 4.0).then(|| bases + offset_sum as i64)
}

fn sum_of(array: &Float64Array) -> Option<i64> {
    let add = |(sum, size): (i64, u64), value: f64| {
        let multiple = times::multiple(value)?;
        Some((sum + multiple, size.checked_add(multiple.unsigned_abs()).filter(|size| (*size as f64) < EXACT / 4.0)?))
    };
    array.iter().flatten().try_fold((0, 0), add).map(|(sum, _)| sum)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{UInt8Array, UInt16Array, UInt32Array};
    use probe_proto::TIMES_PER_SECOND;
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

        #[test]
        fn sums_of_offsets_are_those_of_their_times(
            offsets in prop::collection::vec(prop::option::weighted(0.9, 0..200_u8), 0..40),
            base in prop_oneof![-1_000_000..100_000_000_i64, Just(-100), Just(1 << 45), Just(i64::MAX)],
        ) {
            let times = offsets.iter().map(|offset| Some(times::float(base.checked_add((*offset)?.into())?)));
            let plain = plain(&Float64Array::from_iter(times));
            let arrays: [ArrayRef; 3] = [
                Arc::new(UInt8Array::from_iter(offsets.iter().copied())),
                Arc::new(UInt16Array::from_iter(offsets.iter().map(|offset| offset.map(u16::from)))),
                Arc::new(UInt32Array::from_iter(offsets.iter().map(|offset| offset.map(u32::from)))),
            ];
            for array in &arrays {
                let sum = sum_of_offsets(array, base);
                prop_assert!(sum.is_none() || sum == plain, "{:?} is not {:?}", sum, plain);
                prop_assert!(sum.is_some() || base > 1 << 44, "a sum of short times is known");
            }
        }
    }
}
