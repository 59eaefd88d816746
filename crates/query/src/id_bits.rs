//! Which rows a condition on a text keeps, found by the ids that rows have for their texts: a bit for each row.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type};

/// Rows whose bits are in one word.
const WORD: usize = u64::BITS as usize;

/// The rows that are kept: `texts` says it of each id, and `null` of rows without a text. The bits of rows that are not `wanted`
/// may have any value.
pub(super) fn kept_rows(ids: &ArrayRef, texts: &[bool], null: bool, wanted: Option<&BooleanBuffer>) -> BooleanBuffer {
    if let Some(ids) = ids.as_primitive_opt::<UInt8Type>() {
        // A table of all possible ids, so that no bounds are checked for each row.
        let mut all = [false; 256];
        all.iter_mut().zip(texts).for_each(|(all, kept)| *all = *kept);
        return with_nulls(packed(ids.values(), wanted, |id| all[usize::from(id)]), ids.nulls(), null);
    }
    let is_kept = |id: usize| texts.get(id).copied().unwrap_or(false);
    match (ids.as_primitive_opt::<UInt16Type>(), ids.as_primitive_opt::<UInt32Type>()) {
        (Some(ids), _) => with_nulls(packed(ids.values(), wanted, |id| is_kept(usize::from(id))), ids.nulls(), null),
        (_, Some(ids)) => with_nulls(packed(ids.values(), wanted, |id| is_kept(id as usize)), ids.nulls(), null),
        _ => BooleanBuffer::new_unset(ids.len()),
    }
}

/// A buffer with one bit for each value, made in words of [`WORD`] rows.
fn packed<T: Copy + PartialEq>(values: &[T], wanted: Option<&BooleanBuffer>, bit: impl Fn(T) -> bool) -> BooleanBuffer {
    let byte = |values: &[T; 8]| {
        values.iter().enumerate().fold(0_u8, |byte, (index, value)| byte | u8::from(bit(*value)) << index)
    };
    // Neighbours often have the same text: a stage, a device.
    let same = |values: &[T; WORD]| {
        let one = values[0];
        one == values[WORD - 1] && values.iter().fold(true, |same, value| same & (*value == one))
    };
    let word = |values: &[T; WORD]| {
        if same(values) {
            return if bit(values[0]) { u64::MAX } else { 0 };
        }
        let mut bytes = [0; WORD / 8];
        bytes.iter_mut().zip(values.as_chunks().0).for_each(|(bits, values)| *bits = byte(values));
        u64::from_le_bytes(bytes)
    };
    let (chunks, rest) = values.as_chunks();
    let mut words: Vec<u64> = match wanted {
        Some(wanted) => {
            let words = chunks.iter().zip(wanted.bit_chunks().iter_padded());
            words.map(|(values, wanted)| if wanted == 0 { 0 } else { word(values) }).collect()
        }
        None => chunks.iter().map(word).collect(),
    };
    if !rest.is_empty() {
        words.push(rest.iter().enumerate().fold(0, |word, (index, value)| word | u64::from(bit(*value)) << index));
    }
    BooleanBuffer::new(words.into(), 0, values.len())
}

/// `bits` with `null` where there is no value.
fn with_nulls(bits: BooleanBuffer, valid: Option<&NullBuffer>, null: bool) -> BooleanBuffer {
    match valid.map(NullBuffer::inner) {
        None => bits,
        Some(valid) if null => &bits | &!valid,
        Some(valid) => &bits & valid,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, UInt8Array, UInt16Array, UInt32Array};
    use arrow::buffer::BooleanBuffer;
    use proptest::prelude::*;

    /// Ids of rows, alone and in runs as long as a word and longer.
    fn ids() -> impl Strategy<Value = Vec<Option<u8>>> {
        let run = (prop::option::weighted(0.9, 0..9_u8), prop_oneof![1 => Just(1_usize), 1 => 1..200_usize]);
        prop::collection::vec(run, 0..60)
            .prop_map(|runs| runs.into_iter().flat_map(|(id, rows)| std::iter::repeat_n(id, rows)).collect())
    }

    proptest! {
        #[test]
        fn bits_of_wanted_rows_are_those_of_their_ids(
            ids in ids(),
            kept in prop::collection::vec(any::<bool>(), 0..9),
            null in any::<bool>(),
            seed in any::<u64>(),
            offset in 0..9_usize,
        ) {
            let bit = |row: usize| seed.rotate_left((row / 70) as u32) & 1 == 1;
            let wanted = BooleanBuffer::collect_bool(ids.len() + offset, |row| row >= offset && bit(row - offset));
            let wanted = wanted.slice(offset, ids.len());
            let arrays: [ArrayRef; 3] = [
                Arc::new(UInt8Array::from(ids.clone())),
                Arc::new(ids.iter().map(|id| id.map(u16::from)).collect::<UInt16Array>()),
                Arc::new(ids.iter().map(|id| id.map(u32::from)).collect::<UInt32Array>()),
            ];
            let is_kept = |id: &Option<u8>| id.map_or(null, |id| kept.get(usize::from(id)) == Some(&true));
            for array in &arrays {
                let all = super::kept_rows(array, &kept, null, None);
                prop_assert_eq!(all.iter().collect::<Vec<_>>(), ids.iter().map(is_kept).collect::<Vec<_>>());
                let some = super::kept_rows(array, &kept, null, Some(&wanted));
                for row in wanted.set_indices() {
                    prop_assert_eq!(some.value(row), all.value(row));
                }
            }
        }
    }
}
