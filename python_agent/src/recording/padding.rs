//! How much of a batch of sequences is padding, read from the memory of its tensor: no operator of torch runs for it.

use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::prelude::*;
use pyo3::{ffi, intern};

use super::shape;

/// Bytes of a batch that are read at most: of a larger batch some samples are, evenly spaced.
const MAX_BYTES: usize = 256 << 10;
const MAX_SAMPLES: usize = 128;
/// Fewer positions are no sequence: channels, coordinates, classes.
const MIN_POSITIONS: usize = 8;

/// Types of values that sequences have, kept alive: integers of tokens, and floats of features.
static INT64: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());
static INT32: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());
static FLOAT32: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());

/// Sequences as their tensor has them in memory, without gaps.
struct SequenceTensor<'a> {
    memory: &'a [u8],
    /// Bytes of the value of one position.
    width: usize,
    samples: usize,
    positions: usize,
    /// Whether the values of a position of all samples are beside each other, and not those of a sample.
    is_position_first: bool,
    values: ValueType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueType {
    /// Token ids: one integer for each position.
    Integers,
    /// Features: several floats for each position.
    Floats,
}

/// The share of positions that are padding (0 to 1) in a batch of sequences; None where `tensor`, a plain one, has no sequences.
/// `batch_size` is that of the loader.
pub(super) fn share(tensor: &Bound<'_, PyAny>, batch_size: Option<u64>) -> Option<f64> {
    let py = tensor.py();
    // SAFETY: the tensor is alive, and the GIL is held.
    let (count, dimensions) = unsafe { shape::dimensions(tensor.as_ptr()) }?;
    let [first, second, third] = [dimensions[0], dimensions[1], dimensions[2]].map(|dimension| dimension as usize);
    let (values, width) = values_of(tensor, count)?;
    let features = if values == ValueType::Floats { third } else { 1 };
    let is = |dimension: usize| batch_size == Some(dimension as u64);
    let is_position_first = is(second) && !is(first);
    let (samples, positions) = if is_position_first { (second, first) } else { (first, second) };
    let bytes = first.checked_mul(second)?.checked_mul(features)?.checked_mul(width)?;
    let is_readable = samples > 0
        && positions >= MIN_POSITIONS
        && tensor.getattr(intern!(py, "is_cpu")).ok()?.extract().ok()?
        && tensor.call_method0(intern!(py, "is_contiguous")).ok()?.extract().ok()?;
    if !is_readable {
        return None;
    }
    let number = |object: &Bound<'_, PyAny>, method| object.call_method0(method).ok()?.extract::<usize>().ok();
    // A storage that was made smaller leaves a tensor its shape.
    let storage = tensor.call_method0(intern!(py, "untyped_storage")).ok()?;
    let held = number(&storage, intern!(py, "nbytes"))?;
    let offset = number(tensor, intern!(py, "storage_offset"))?;
    if offset.checked_mul(width)?.checked_add(bytes)? > held {
        return None;
    }
    let address = number(tensor, intern!(py, "data_ptr")).filter(|address| *address != 0)?;
    // SAFETY: these bytes are within the storage, which the tensor keeps, and no other Python thread runs while they are read.
    let memory = unsafe { slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(address), bytes) };
    let width = width * features;
    SequenceTensor { memory, width, samples, positions, is_position_first, values }.share()
}

/// The type of the values of a tensor, and the bytes of each; None where they are of no sequences.
fn values_of(tensor: &Bound<'_, PyAny>, dimensions: usize) -> Option<(ValueType, usize)> {
    let kind = tensor.getattr(intern!(tensor.py(), "dtype")).ok()?;
    let is = |of: &AtomicPtr<ffi::PyObject>| of.load(Ordering::Relaxed) == kind.as_ptr();
    match dimensions {
        2 if is(&INT64) => Some((ValueType::Integers, 8)),
        2 if is(&INT32) => Some((ValueType::Integers, 4)),
        3 if is(&FLOAT32) => Some((ValueType::Floats, 4)),
        _ => None,
    }
}

impl SequenceTensor<'_> {
    /// The share of positions at one end of the samples that have the value of the padding there: of the end that has more.
    fn share(&self) -> Option<f64> {
        let sample_bytes = self.positions.checked_mul(self.width)?;
        let count = (MAX_BYTES / sample_bytes.max(1)).min(MAX_SAMPLES).min(self.samples);
        let ends = [false, true].map(|from_front| self.padded(count, from_front));
        let all = count * self.positions;
        ends.into_iter().flatten().max().filter(|_| all > 0).map(|padded| padded as f64 / all as f64)
    }

    /// The padded positions at one end of `count` samples; None where what is there is no padding of sequences.
    fn padded(&self, count: usize, from_front: bool) -> Option<usize> {
        let mut runs = [(0, 0); MAX_SAMPLES];
        let runs = runs.get_mut(..count)?;
        for (index, run) in runs.iter_mut().enumerate() {
            let sample = index * self.samples / count;
            *run = (sample, self.run(sample, from_front));
        }
        // Samples of one value alone have no content that could be padded: types of tokens, a mask.
        let with_content = || runs.iter().copied().filter(|(_, run)| *run < self.positions);
        let (longest_sample, longest) = with_content().max_by_key(|(_, run)| *run)?;
        // One position may have that value by chance.
        if longest < 2 {
            return Some(0);
        }
        let value = self.value(longest_sample, 0, from_front);
        let is_padding = match self.values {
            // Masks and classes have no other values than these.
            ValueType::Integers => {
                let mut next = with_content().map(|(sample, run)| self.value(sample, run, from_front));
                !is_bit(value) || !next.all(is_bit)
            }
            ValueType::Floats => value.iter().all(|byte| *byte == 0),
        };
        if !is_padding {
            return None;
        }
        let of_padding = runs.iter().filter(|(sample, _)| self.value(*sample, 0, from_front) == value);
        Some(of_padding.map(|(_, run)| run).sum())
    }

    /// The number of positions at one end of a sample that have the same value.
    fn run(&self, sample: usize, from_front: bool) -> usize {
        let value = self.value(sample, 0, from_front);
        let same = |index: &usize| self.value(sample, *index, from_front) == value;
        (0..self.positions).take_while(same).count()
    }

    /// The value at the position with this index from one end of a sample.
    fn value(&self, sample: usize, index: usize, from_front: bool) -> &[u8] {
        let position = if from_front { index } else { self.positions - 1 - index };
        let place =
            if self.is_position_first { position * self.samples + sample } else { sample * self.positions + position };
        self.memory.get(place * self.width..(place + 1) * self.width).unwrap_or_default()
    }
}

/// Whether an integer is 0 or 1.
fn is_bit(value: &[u8]) -> bool {
    value.split_first().is_some_and(|(low, high)| *low <= 1 && high.iter().all(|byte| *byte == 0))
}

/// Sets the types of values that sequences have: `torch.int64`, `torch.int32` and `torch.float32`.
#[pyfunction]
fn set_sequence_types(int64: &Bound<'_, PyAny>, int32: &Bound<'_, PyAny>, float32: &Bound<'_, PyAny>) {
    for (kept, kind) in [(&INT64, int64), (&INT32, int32), (&FLOAT32, float32)] {
        if kept.load(Ordering::Relaxed).is_null() {
            kept.store(kind.clone().into_ptr(), Ordering::Relaxed);
        }
    }
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_sequence_types, module)?)
}

#[cfg(test)]
mod tests {
    use super::{SequenceTensor, ValueType};

    fn share_of(rows: &[&[i64]], is_position_first: bool) -> Option<f64> {
        let (samples, positions) = (rows.len(), rows[0].len());
        let place = |index: usize| {
            if is_position_first { (index % samples, index / samples) } else { (index / positions, index % positions) }
        };
        let values = (0..samples * positions).map(place).map(|(sample, position)| rows[sample][position]);
        let memory: Vec<u8> = values.flat_map(i64::to_le_bytes).collect();
        let values = ValueType::Integers;
        SequenceTensor { memory: &memory, width: 8, samples, positions, is_position_first, values }.share()
    }

    #[test]
    fn tokens_that_end_or_begin_with_one_value_are_padded() {
        let behind: [&[i64]; 3] = [&[5, 6, 7, 8, 9, 2, 4, 3], &[5, 6, 0, 0, 0, 0, 0, 0], &[9, 8, 7, 6, 5, 4, 3, 0]];
        let before: [&[i64]; 2] = [&[0, 0, 0, 0, 6, 7, 8, 9], &[0, 0, 0, 0, 0, 0, 5, 6]];
        for is_position_first in [false, true] {
            assert_eq!(share_of(&behind, is_position_first), Some(7.0 / 24.0));
            assert_eq!(share_of(&before, is_position_first), Some(10.0 / 16.0));
        }
    }

    #[test]
    fn text_that_fills_its_length_is_not_padded() {
        // The same token ends each sample, as in sentences; one ends with two others that are equal.
        assert_eq!(share_of(&[&[4, 5, 6, 7, 8, 9, 3, 2], &[8, 7, 6, 5, 4, 3, 9, 2]], false), Some(0.0));
        assert_eq!(share_of(&[&[4, 5, 6, 7, 8, 9, 3, 7], &[8, 7, 6, 5, 4, 3, 5, 2]], false), Some(0.0));
    }

    #[test]
    fn masks_and_constants_are_no_sequences() {
        assert_eq!(share_of(&[&[1, 1, 1, 1, 1, 1, 1, 1], &[1, 1, 1, 0, 0, 0, 0, 0]], false), None);
        assert_eq!(share_of(&[&[0; 8], &[0; 8]], false), None);
        assert_eq!(share_of(&[&[7; 8], &[7; 8]], false), None);
    }

    #[test]
    fn features_are_padded_by_zeros() {
        let of = |filled: &[usize], padding: f32| {
            let row = |filled: usize| {
                (0..10).flat_map(
                    move |position| if position < filled { [position as f32 + 1.0, 0.0] } else { [padding; 2] },
                )
            };
            let memory: Vec<u8> = filled.iter().flat_map(|filled| row(*filled)).flat_map(f32::to_le_bytes).collect();
            let (samples, values) = (filled.len(), ValueType::Floats);
            SequenceTensor { memory: &memory, width: 8, samples, positions: 10, is_position_first: false, values }
                .share()
        };
        assert_eq!(of(&[10, 2, 6], 0.0), Some(12.0 / 30.0));
        assert_eq!(of(&[10, 10], 0.0), Some(0.0));
        assert_eq!(of(&[10, 2], 3.0), Some(0.0));
    }
}
