//! Sums of integers as segments hold them, over the rows that a filter keeps: without an array of those rows.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type};

/// Rows whose bits are in one word, and in one byte.
const WORD: usize = u64::BITS as usize;
const BYTE: usize = u8::BITS as usize;

/// The number of rows that are kept and not NULL; `kept` has a bit for each row, and all are kept without it. `count` is the number of
/// rows that are kept.
pub(super) fn count(values: &ArrayRef, kept: Option<&BooleanBuffer>, count: usize) -> usize {
    if values.null_count() == 0 {
        return count;
    }
    not_null(values, kept).map_or(values.len(), |bits| bits.count_set_bits())
}

/// The sum of the unsigned integers of the rows that are kept and not NULL, and the number of those rows. `count` is the number of
/// rows that are kept. None for other types.
pub(super) fn sum(values: &ArrayRef, kept: Option<&BooleanBuffer>, count: usize) -> Option<(u64, usize)> {
    fn of<T: ArrowPrimitiveType<Native: Masked>>(values: &ArrayRef, bits: Option<&BooleanBuffer>) -> Option<u64> {
        let values = values.as_primitive_opt::<T>()?.values();
        Some(bits.map_or_else(|| all(values), |bits| some(values, bits)))
    }
    let bits = not_null(values, kept);
    let sum = of::<UInt8Type>(values, bits.as_ref())
        .or_else(|| of::<UInt16Type>(values, bits.as_ref()))
        .or_else(|| of::<UInt32Type>(values, bits.as_ref()))?;
    let count = if values.null_count() == 0 { count } else { bits.map_or(values.len(), |bits| bits.count_set_bits()) };
    Some((sum, count))
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

/// An unsigned integer that is added up where its bit is set.
trait Masked: Copy {
    /// The value under `mask`, which is 0 or -1.
    fn under(self, mask: i8) -> u64;
}

macro_rules! masked {
    ($($integer:ty),*) => {
        $(impl Masked for $integer {
            #[inline(always)]
            fn under(self, mask: i8) -> u64 {
                // The mask of all bits is as wide as the value.
                u64::from(self & mask as $integer)
            }
        })*
    };
}
masked!(u8, u16, u32);

/// A mask for each bit of each byte: without a branch for each bit, which a processor predicts badly.
const MASKS: [[i8; BYTE]; 256] = {
    let mut masks = [[0; BYTE]; 256];
    let mut bit = 0;
    while bit < 256 * BYTE {
        masks[bit / BYTE][bit % BYTE] = -(((bit / BYTE) >> (bit % BYTE) & 1) as i8);
        bit += 1;
    }
    masks
};

fn all<T: Masked>(values: &[T]) -> u64 {
    values.iter().map(|value| value.under(-1)).sum()
}

/// The sum of the values whose bits are set.
fn some<T: Masked>(values: &[T], bits: &BooleanBuffer) -> u64 {
    let (words, rest) = values.as_chunks::<WORD>();
    let chunks = bits.bit_chunks();
    let mut bits = chunks.iter_padded();
    let mut sum = 0;
    for (values, word) in words.iter().zip(&mut bits) {
        if word == u64::MAX {
            sum += all(values);
        } else if word != 0 {
            sum += values
                .as_chunks()
                .0
                .iter()
                .zip(word.to_le_bytes())
                .map(|(values, bits)| of_byte(values, bits))
                .sum::<u64>();
        }
    }
    let word = bits.next().unwrap_or_default();
    sum + rest.iter().enumerate().map(|(index, value)| value.under(-((word >> index & 1) as i8))).sum::<u64>()
}

/// The sum of the values whose bits are set in a byte.
#[inline(always)]
fn of_byte<T: Masked>(values: &[T; BYTE], bits: u8) -> u64 {
    values.iter().zip(MASKS[usize::from(bits)]).map(|(value, mask)| value.under(mask)).sum()
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
                prop_assert_eq!(super::sum(array, kept.as_ref(), count), Some((expected.iter().sum(), expected.len())));
                prop_assert_eq!(super::count(array, kept.as_ref(), count), expected.len());
            }
            let other: ArrayRef = Arc::new(UInt64Array::from(vec![1; rows.len()]));
            prop_assert_eq!(super::sum(&other, kept.as_ref(), 0), None);
        }
    }
}
