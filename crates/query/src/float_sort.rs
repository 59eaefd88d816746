//! Sorts floats in their total order by the bytes of their bits. The values of a group mostly have the same first bits, which
//! say how large they are, and times of agents end in zeros, so that there are few bytes to sort by.

/// Fewer values than this are sorted faster by comparing them.
const MAX_INSERTION_SORT: usize = 128;
/// Bits by which one pass sorts.
const DIGIT: u32 = 8;
/// The number of values of a digit.
const DIGITS: usize = 1 << DIGIT;
const SIGN: u64 = 1 << 63;

/// Sorts floats, and keeps the memory that it needs for that.
#[derive(Default)]
pub(super) struct FloatSorter {
    keys: Vec<u64>,
    sorted: Vec<u64>,
}

impl FloatSorter {
    /// Sorts `values` as `f64::total_cmp` orders them.
    pub(super) fn sort(&mut self, values: &mut [f64]) {
        if values.len() < MAX_INSERTION_SORT {
            values.sort_unstable_by(f64::total_cmp);
            return;
        }
        let Self { keys, sorted } = self;
        keys.clear();
        keys.extend(values.iter().copied().map(key));
        sorted.resize(keys.len(), 0);
        let one = keys[0];
        let different = keys.iter().fold(0, |bits, key| bits | (key ^ one));
        let mut shift = different.trailing_zeros();
        while shift < u64::BITS - different.leading_zeros() {
            sort_by_digit(keys, sorted, shift);
            std::mem::swap(keys, sorted);
            shift += DIGIT;
        }
        values.iter_mut().zip(keys).for_each(|(value, key)| *value = float(*key));
    }

    /// Bytes that the sorter keeps.
    pub(super) fn bytes(&self) -> usize {
        (self.keys.capacity() + self.sorted.capacity()) * size_of::<u64>()
    }
}

/// Sorts `keys` by the digit that begins at bit `shift`; those with the same digit stay in order.
fn sort_by_digit(keys: &[u64], sorted: &mut [u64], shift: u32) {
    let digit = |key: u64| (key >> shift) as usize % DIGITS;
    let mut starts = [0_usize; DIGITS];
    keys.iter().for_each(|key| starts[digit(*key)] += 1);
    let mut before = 0;
    for start in &mut starts {
        before += std::mem::replace(start, before);
    }
    for key in keys {
        let start = &mut starts[digit(*key)];
        sorted[*start] = *key;
        *start += 1;
    }
}

/// An integer for each float, in the same order.
fn key(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}

fn float(key: u64) -> f64 {
    f64::from_bits(if key & SIGN == 0 { !key } else { key & !SIGN })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            any::<f64>(),
            any::<u64>().prop_map(f64::from_bits),
            (0..1_u32 << 20).prop_map(|time| f64::from(time) / f64::from(1 << 27)),
            Just(0.0),
            Just(-0.0),
        ]
    }

    fn bits(values: &[f64]) -> Vec<u64> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn order_is_that_of_comparing(lists in prop::collection::vec(prop::collection::vec(value(), 0..400), 1..4)) {
            let mut sorter = FloatSorter::default();
            for mut values in lists {
                let mut compared = values.clone();
                compared.sort_by(f64::total_cmp);
                sorter.sort(&mut values);
                prop_assert_eq!(bits(&values), bits(&compared));
            }
        }

        #[test]
        fn times_and_equal_values_are_sorted(mut times in prop::collection::vec(1_000..1_100_u32, MAX_INSERTION_SORT..3 * MAX_INSERTION_SORT)) {
            let float = |time: &u32| f64::from(*time) / f64::from(1 << 27);
            let mut values: Vec<f64> = times.iter().map(float).collect();
            times.sort_unstable();
            FloatSorter::default().sort(&mut values);
            prop_assert_eq!(values, times.iter().map(float).collect::<Vec<_>>());
        }
    }
}
