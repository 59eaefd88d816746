//! Integers as they are stored, in as few bytes as the span of a batch needs, and as SQL sees them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Float64Array, Int32Array, Int64Array, TimestampNanosecondArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type};
use probe_proto::table::ColumnType;

use super::offsets::in_few_bytes;
use super::schema::utc;
use super::times;

/// `values` minus `base`, in as few bytes as `high` needs; None where that would be more than four.
pub(super) fn narrow(values: &[i64], base: i64, high: i64, validity: Option<NullBuffer>) -> Option<ArrayRef> {
    let largest = u64::try_from(high.checked_sub(base)?).ok()?;
    in_few_bytes(values.iter().map(|value| value.wrapping_sub(base) as u64), largest, validity)
}

/// The values that [`narrow`] made into `offsets`; empty for an array of any other kind.
pub(super) fn widened(offsets: &ArrayRef, base: i64) -> Vec<i64> {
    fn widen<T: ArrowPrimitiveType<Native: Into<i64>>>(offsets: &ArrayRef, base: i64) -> Option<Vec<i64>> {
        let values = offsets.as_primitive_opt::<T>()?.values();
        Some(values.iter().map(|value| base.wrapping_add((*value).into())).collect())
    }
    widen::<UInt8Type>(offsets, base)
        .or_else(|| widen::<UInt16Type>(offsets, base))
        .or_else(|| widen::<UInt32Type>(offsets, base))
        .unwrap_or_default()
}

/// An array in SQL's type of integers; of a float column they are multiples ([`super::times`]).
pub(super) fn wide(values: Vec<i64>, validity: Option<NullBuffer>, kind: ColumnType) -> ArrayRef {
    match kind {
        ColumnType::Int32 => {
            let values: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
            Arc::new(Int32Array::new(values.into(), validity))
        }
        ColumnType::Float64 => Arc::new(Float64Array::new(values.into_iter().map(times::float).collect(), validity)),
        ColumnType::Timestamp => Arc::new(TimestampNanosecondArray::new(values.into(), validity).with_timezone(utc())),
        _ => Arc::new(Int64Array::new(values.into(), validity)),
    }
}

/// An array in SQL's type, from `offsets`.
pub(super) fn offsets_array(offsets: &ArrayRef, base: i64, kind: ColumnType) -> ArrayRef {
    if kind == ColumnType::Float64
        && let Some(floats) = times::widened(offsets, base)
    {
        return Arc::new(floats);
    }
    wide(widened(offsets, base), offsets.nulls().cloned(), kind)
}
