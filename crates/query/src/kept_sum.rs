//! Sums of integers as segments hold them, over the rows that a filter keeps: without an array of those rows.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type};

/// Rows whose bits are in one word.
const WORD: usize = u64::BITS as usize;

/// The number of rows that are kept and not NULL. `kept` has a bit for each row, and all are kept without it; `count` of them are set.
pub(super) fn count(values: &ArrayRef, kept: Option<&BooleanBuffer>, count: usize) -> usize {
    if values.null_count() == 0 {
        return count;
    }
    not_null(values, kept).map_or(values.len(), |bits| bits.count_set_bits())
}

/// The sum of the unsigned integers of the rows that are kept and not NULL. None for other types.
pub(super) fn sum(values: &ArrayRef, kept: Option<&BooleanBuffer>) -> Option<u64> {
    fn of<T: ArrowPrimitiveType<Native: Into<u64>>>(values: &ArrayRef, bits: Option<&BooleanBuffer>) -> Option<u64> {
        let values = values.as_primitive_opt::<T>()?.values();
        Some(bits.map_or_else(|| all(values), |bits| some(values, bits)))
    }
    let bits = not_null(values, kept);
    of::<UInt8Type>(values, bits.as_ref())
        .or_else(|| of::<UInt16Type>(values, bits.as_ref()))
        .or_else(|| of::<UInt32Type>(values, bits.as_ref()))
}

/// The rows that are kept and not NULL; None for all rows.
fn not_null(values: &ArrayRef, kept: Option<&BooleanBuffer>) -> Option<BooleanBuffer> {
    match (values.nulls(), kept) {
        (None, None) => None,
        (None, Some(kept)) => Some(kept.clone()),
        (Some(valid), None) => Some(valid.inner().clone()),
        (Some(valid), Some(kept)) => Some(valid.inner() & kept),
    }
}

fn all<T: Copy + Into<u64>>(values: &[T]) -> u64 {
    values.iter().map(|value| Into::<u64>::into(*value)).sum()
}

/// The sum of the values whose bits are set. Of a word in which few bits are set those are looked up, and otherwise those that are not.
fn some<T: Copy + Into<u64>>(values: &[T], bits: &BooleanBuffer) -> u64 {
    let mut sum = 0;
    for (values, word) in values.chunks(WORD).zip(bits.bit_chunks().iter_padded()) {
        let set = word.count_ones() as usize;
        sum += if set * 2 <= values.len() {
            at(values, word)
        } else {
            let others = !word & (u64::MAX >> (WORD - values.len()));
            all(values) - at(values, others)
        };
    }
    sum
}

/// The sum of the values at the bits of a word that are set.
fn at<T: Copy + Into<u64>>(values: &[T], mut word: u64) -> u64 {
    let mut sum = 0;
    while word != 0 {
        sum += values.get(word.trailing_zeros() as usize).map_or(0, |value| Into::<u64>::into(*value));
        word &= word - 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, UInt8Array, UInt16Array, UInt32Array, UInt64Array};
    use arrow::buffer::BooleanBuffer;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_are_those_of_the_rows_that_are_kept(
            rows in prop::collection::vec((prop::option::weighted(0.8, any::<u8>()), any::<bool>()), 0..300),
            density in 0..4_u8,
            offset in 0..9_usize,
            has_bits in any::<bool>(),
        ) {
            // All, most, some and none of the rows.
            let is_kept = |row: usize, drawn: bool| match density {
                0 => true,
                1 => drawn || !row.is_multiple_of(3),
                2 => drawn && row.is_multiple_of(7),
                _ => false,
            };
            let bits: Vec<bool> = rows.iter().enumerate().map(|(row, (_, drawn))| is_kept(row, *drawn)).collect();
            let shifted = BooleanBuffer::collect_bool(rows.len() + offset, |row| row >= offset && bits[row - offset]);
            let kept = has_bits.then(|| shifted.slice(offset, rows.len()));
            let values: Vec<Option<u8>> = rows.iter().map(|(value, _)| *value).collect();
            let arrays: [ArrayRef; 3] = [
                Arc::new(UInt8Array::from(values.clone())),
                Arc::new(values.iter().map(|value| value.map(u16::from)).collect::<UInt16Array>()),
                Arc::new(values.iter().map(|value| value.map(u32::from)).collect::<UInt32Array>()),
            ];
            let expected: Vec<u64> = (values.iter().zip(&bits))
                .filter(|(_, bit)| !has_bits || **bit)
                .filter_map(|(value, _)| value.map(u64::from))
                .collect();
            for array in &arrays {
                let count = kept.as_ref().map_or(rows.len(), BooleanBuffer::count_set_bits);
                prop_assert_eq!(super::sum(array, kept.as_ref()), Some(expected.iter().sum()));
                prop_assert_eq!(super::count(array, kept.as_ref(), count), expected.len());
            }
            let other: ArrayRef = Arc::new(UInt64Array::from(vec![1; rows.len()]));
            prop_assert_eq!(super::sum(&other, kept.as_ref()), None);
        }
    }
}
