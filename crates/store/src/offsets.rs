//! The unsigned offsets of one, two or four bytes as which columns are kept.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowNumericType, AsArray, UInt8Array, UInt16Array, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::{max, min};
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type};

/// `offsets` in as few bytes as the `largest` of them needs; None where that would be more than four.
pub(super) fn in_few_bytes(
    offsets: impl Iterator<Item = u64>,
    largest: u64,
    validity: Option<NullBuffer>,
) -> Option<ArrayRef> {
    // No offset is larger than the largest, so that these casts lose nothing.
    Some(match largest {
        0..=0xff => Arc::new(UInt8Array::new(offsets.map(|offset| offset as u8).collect(), validity)),
        0x100..=0xffff => Arc::new(UInt16Array::new(offsets.map(|offset| offset as u16).collect(), validity)),
        0x1_0000..=0xffff_ffff => Arc::new(UInt32Array::new(offsets.map(|offset| offset as u32).collect(), validity)),
        _ => return None,
    })
}

/// The smallest and largest offset that is not NULL.
pub(super) fn bounds(offsets: &ArrayRef) -> Option<(u32, u32)> {
    fn of<T: ArrowNumericType<Native: Into<u32>>>(offsets: &ArrayRef) -> Option<(u32, u32)> {
        let offsets = offsets.as_primitive_opt::<T>()?;
        Some((min(offsets)?.into(), max(offsets)?.into()))
    }
    of::<UInt8Type>(offsets).or_else(|| of::<UInt16Type>(offsets)).or_else(|| of::<UInt32Type>(offsets))
}
