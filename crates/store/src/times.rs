//! Floats that are whole multiples of 1/[`TIMES_PER_SECOND`], as all times of agents are: a float of that kind is an integer.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Float64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type};
use probe_proto::TIMES_PER_SECOND;

use super::offsets::in_few_bytes;

/// Added to a float of at most [`MAX_MULTIPLE`] and subtracted again, it leaves the nearest whole number.
const TO_WHOLE: f64 = (3_u64 << 51) as f64;
/// Largest magnitude for which [`TO_WHOLE`] works: a larger sum is rounded more coarsely than to whole numbers.
const MAX_MULTIPLE: f64 = (1_u64 << 51) as f64;
/// Added to a whole float from 0 to 2^52, it leaves the number in the lower bits.
const TO_BITS: f64 = (1_u64 << 52) as f64;
/// Values that are looked at side by side.
const LANES: usize = 8;

/// Converts a count of multiples to a float.
pub fn float(multiple: i64) -> f64 {
    multiple as f64 / TIMES_PER_SECOND as f64
}

/// The number of multiples that a float is; None where it is no whole number.
pub fn multiple(value: f64) -> Option<i64> {
    let multiple = value * TIMES_PER_SECOND as f64;
    (not_whole(value, multiple) == 0 && multiple.abs() <= MAX_MULTIPLE).then_some(multiple as i64)
}

/// The multiples of `values` as differences to the smallest, in as few bytes as the largest needs, and the smallest; None where
/// some value is no whole multiple, or where that would be more than four bytes. The value of a row that is NULL is replaced.
pub(super) fn narrow(values: &mut [f64], validity: Option<&NullBuffer>) -> Option<(i64, ArrayRef)> {
    if let Some(validity) = validity {
        let some = validity.valid_indices().next().map_or(0.0, |row| values[row]);
        values.iter_mut().zip(validity).filter(|(_, valid)| !valid).for_each(|(value, _)| *value = some);
    }
    let (low, high) = bounds(values)?;
    let bits = |value: &f64| ((value * TIMES_PER_SECOND as f64 - low) + TO_BITS).to_bits();
    // Above the number's own bits is the exponent.
    let offsets = values.iter().map(|value| bits(value) & u64::from(u32::MAX));
    Some((low as i64, in_few_bytes(offsets, (high - low) as u64, validity.cloned())?))
}

/// The floats that [`narrow`] made into `offsets`; None for an array of any other kind.
pub(super) fn widened(offsets: &ArrayRef, base: i64) -> Option<Float64Array> {
    fn widen<T: ArrowPrimitiveType<Native: Into<f64>>>(offsets: &ArrayRef, base: f64) -> Option<Float64Array> {
        let offsets = offsets.as_primitive_opt::<T>()?;
        let value = |offset: &T::Native| (base + (*offset).into()) / TIMES_PER_SECOND as f64;
        Some(Float64Array::new(offsets.values().iter().map(value).collect(), offsets.nulls().cloned()))
    }
    let base = base as f64;
    widen::<UInt8Type>(offsets, base)
        .or_else(|| widen::<UInt16Type>(offsets, base))
        .or_else(|| widen::<UInt32Type>(offsets, base))
}

/// The smallest and largest multiple; None if some value is not a whole multiple.
fn bounds(values: &[f64]) -> Option<(f64, f64)> {
    let mut lanes = LaneBounds { low: [f64::MAX; LANES], high: [f64::MIN; LANES], others: [0; LANES] };
    let (chunks, rest) = values.as_chunks::<LANES>();
    chunks.iter().for_each(|chunk| lanes.add(chunk));
    rest.iter().for_each(|value| lanes.add(&[*value; LANES]));
    let low = lanes.low.into_iter().fold(f64::MAX, f64::min);
    let high = lanes.high.into_iter().fold(f64::MIN, f64::max);
    let are_whole = lanes.others.iter().all(|other| *other == 0);
    (are_whole && -MAX_MULTIPLE <= low && low <= high && high <= MAX_MULTIPLE).then_some((low, high))
}

/// Not 0 where a value is no whole multiple, or a negative zero, whose sign an integer can't have.
fn not_whole(value: f64, multiple: f64) -> u64 {
    // The difference of a whole number is 0, that of a NaN or an infinite number is NaN.
    let difference = ((multiple + TO_WHOLE) - TO_WHOLE) - multiple;
    difference.abs().to_bits() | u64::from(value.to_bits() == (-0.0_f64).to_bits())
}

/// The bounds of the values in each lane.
struct LaneBounds {
    low: [f64; LANES],
    high: [f64; LANES],
    /// What [`not_whole`] says of all values together.
    others: [u64; LANES],
}

impl LaneBounds {
    fn add(&mut self, values: &[f64; LANES]) {
        for (lane, value) in values.iter().enumerate() {
            let multiple = value * TIMES_PER_SECOND as f64;
            self.others[lane] |= not_whole(*value, multiple);
            self.low[lane] = if multiple < self.low[lane] { multiple } else { self.low[lane] };
            self.high[lane] = if multiple > self.high[lane] { multiple } else { self.high[lane] };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time() -> impl Strategy<Value = f64> {
        prop_oneof![9 => (-1000..1_i64 << 20).prop_map(float), 1 => Just(0.0)]
    }

    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            200 => time(),
            1 => Just(-0.0),
            1 => Just(f64::NAN),
            1 => Just(f64::NEG_INFINITY),
            1 => Just(0.1),
            1 => Just(1e300),
            1 => Just(f64::MIN_POSITIVE),
            1 => (0..1_i64 << 53).prop_map(float),
            1 => Just(float(1).next_up()),
        ]
    }

    fn values() -> impl Strategy<Value = Vec<f64>> {
        prop_oneof![
            prop::collection::vec(time(), 1..40),
            prop::collection::vec((0..5_i64).prop_map(|step| float(step << 30)), 1..40),
            prop::collection::vec(value(), 1..40),
        ]
    }

    fn is_whole(value: f64) -> bool {
        let multiple = value * TIMES_PER_SECOND as f64;
        multiple.abs() <= MAX_MULTIPLE && multiple == multiple.round() && value.to_bits() != (-0.0_f64).to_bits()
    }

    proptest! {
        #[test]
        fn floats_come_back_to_the_last_bit(
            mut floats in values(),
            valid in prop_oneof![Just(u64::MAX), any::<u64>()],
        ) {
            let validity = NullBuffer::from_iter((0..floats.len()).map(|row| valid >> row & 1 == 1));
            let valid: Vec<f64> = validity.valid_indices().map(|row| floats[row]).collect();
            let span = valid.iter().copied().fold(f64::MIN, f64::max) - valid.iter().copied().fold(f64::MAX, f64::min);
            let fits = valid.iter().all(|value| is_whole(*value)) && span * TIMES_PER_SECOND as f64 <= f64::from(u32::MAX);
            let narrowed = narrow(&mut floats, Some(&validity).filter(|validity| validity.null_count() > 0));
            prop_assert_eq!(narrowed.is_some(), fits || valid.is_empty());
            if let Some((base, offsets)) = narrowed {
                let back = widened(&offsets, base).unwrap();
                let back: Vec<u64> = back.iter().flatten().map(f64::to_bits).collect();
                prop_assert_eq!(back, valid.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
            }
        }
    }
}
