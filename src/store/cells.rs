//! A column of a batch at rest, and how it becomes an Arrow array when a query asks for it.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int32Array, Int64Array, TimestampNanosecondArray,
    UInt32Array, new_null_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::compute::{concat, take};
use arrow::datatypes::UInt32Type;
use arrow::error::ArrowError;
use bytes::Bytes;
use probe_proto::decode::{Decoded, Values};
use probe_proto::table::ColumnType;

use super::schema::{arrow_type, utc};
use super::strings::Dictionary;

/// The values of a column. Their number is the batch's.
#[derive(Debug, Clone)]
pub(crate) enum Cells {
    /// Every row is NULL.
    Nulls,
    /// Every row that is not NULL has this value: an integer, a timestamp, a boolean as 0 or 1, the id of a string.
    Constant {
        /// The value.
        value: i64,
        /// Which rows have it; None for all.
        validity: Option<NullBuffer>,
    },
    /// Anything but text, as SQL sees it.
    Array(ArrayRef),
    /// Text, as ids.
    Text(UInt32Array),
}

impl Cells {
    /// From checked values. Nothing of the frame they came in is kept: it would stay in memory as a whole, uncounted.
    pub(crate) fn new(decoded: Decoded, kind: ColumnType, rows: usize) -> Self {
        let validity = match decoded.validity.map(|bits| validity(&bits, rows)) {
            Some(validity) if validity.null_count() == rows => return Self::Nulls,
            Some(validity) if validity.null_count() > 0 => Some(validity),
            _ => None,
        };
        match decoded.values {
            Values::Nulls => Self::Nulls,
            Values::Constant(value) => Self::Constant { value, validity },
            Values::Floats(bytes) => {
                let values = ScalarBuffer::new(Buffer::from_slice_ref(&bytes), 0, rows);
                Self::Array(Arc::new(Float64Array::new(values, validity)))
            }
            Values::Ints(values) => match kind {
                ColumnType::Int32 => {
                    let values: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
                    Self::Array(Arc::new(Int32Array::new(values.into(), validity)))
                }
                ColumnType::Bool => {
                    let values = BooleanBuffer::collect_bool(rows, |row| values[row] != 0);
                    Self::Array(Arc::new(BooleanArray::new(values, validity)))
                }
                ColumnType::Text => {
                    let ids: Vec<u32> = values.into_iter().map(|id| id as u32).collect();
                    Self::Text(UInt32Array::new(ids.into(), validity))
                }
                ColumnType::Timestamp => {
                    Self::Array(Arc::new(TimestampNanosecondArray::new(values.into(), validity).with_timezone(utc())))
                }
                ColumnType::Int64 | ColumnType::Float64 | ColumnType::Unspecified => {
                    Self::Array(Arc::new(Int64Array::new(values.into(), validity)))
                }
            },
        }
    }

    /// Rows that are NULL.
    pub(crate) fn nulls(&self, rows: usize) -> usize {
        match self {
            Self::Nulls => rows,
            Self::Constant { validity, .. } => validity.as_ref().map_or(0, NullBuffer::null_count),
            Self::Array(array) => array.null_count(),
            Self::Text(ids) => ids.null_count(),
        }
    }

    /// What they take in memory.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Nulls | Self::Constant { validity: None, .. } => 0,
            Self::Constant { validity: Some(validity), .. } => validity.buffer().capacity(),
            Self::Array(array) => array.get_array_memory_size(),
            Self::Text(ids) => ids.get_array_memory_size(),
        }
    }

    /// `length` rows from `offset` on, as SQL sees them.
    pub(crate) fn array(
        &self,
        kind: ColumnType,
        offset: usize,
        length: usize,
        strings: &Dictionary,
    ) -> Result<ArrayRef, ArrowError> {
        let array = match self {
            Self::Nulls => return Ok(new_null_array(&arrow_type(kind), length)),
            Self::Array(array) => return Ok(array.slice(offset, length)),
            Self::Text(ids) => Arc::new(ids.slice(offset, length)),
            Self::Constant { value, validity } => {
                constant(*value, kind, length, validity.as_ref().map(|bits| bits.slice(offset, length)))
            }
        };
        match array.as_primitive_opt::<UInt32Type>() {
            Some(ids) => take(strings.values() as &dyn Array, ids, None),
            None => Ok(array),
        }
    }

    /// The rows of all of `parts` (each with its number of rows), in order.
    pub(crate) fn concat(parts: &[(&Self, usize)], kind: ColumnType) -> Result<Self, ArrowError> {
        let constant = |cells: &Self| match cells {
            Self::Constant { value, validity: None } => Some(*value),
            _ => None,
        };
        if parts.iter().all(|(cells, _)| matches!(cells, Self::Nulls)) {
            return Ok(Self::Nulls);
        }
        let first = parts.first().and_then(|(cells, _)| constant(cells));
        if let Some(value) = first
            && parts.iter().all(|(cells, _)| constant(cells) == Some(value))
        {
            return Ok(Self::Constant { value, validity: None });
        }
        let arrays: Vec<ArrayRef> = parts.iter().map(|(cells, rows)| cells.at_rest(kind, *rows)).collect();
        let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
        let whole = concat(&arrays)?;
        Ok(match whole.as_primitive_opt::<UInt32Type>() {
            Some(ids) => Self::Text(ids.clone()),
            None => Self::Array(whole),
        })
    }

    /// As an array; text as ids.
    fn at_rest(&self, kind: ColumnType, rows: usize) -> ArrayRef {
        match self {
            Self::Nulls if kind == ColumnType::Text => Arc::new(UInt32Array::new_null(rows)),
            Self::Nulls => new_null_array(&arrow_type(kind), rows),
            Self::Constant { value, validity } => constant(*value, kind, rows, validity.clone()),
            Self::Array(array) => Arc::clone(array),
            Self::Text(ids) => Arc::new(ids.clone()),
        }
    }
}

/// One value in every row; text as ids.
fn constant(value: i64, kind: ColumnType, rows: usize, validity: Option<NullBuffer>) -> ArrayRef {
    match kind {
        ColumnType::Int32 => Arc::new(Int32Array::new(vec![value as i32; rows].into(), validity)),
        ColumnType::Text => Arc::new(UInt32Array::new(vec![value as u32; rows].into(), validity)),
        ColumnType::Bool => {
            let values = if value != 0 { BooleanBuffer::new_set(rows) } else { BooleanBuffer::new_unset(rows) };
            Arc::new(BooleanArray::new(values, validity))
        }
        ColumnType::Timestamp => {
            Arc::new(TimestampNanosecondArray::new(vec![value; rows].into(), validity).with_timezone(utc()))
        }
        ColumnType::Int64 | ColumnType::Float64 | ColumnType::Unspecified => {
            Arc::new(Int64Array::new(vec![value; rows].into(), validity))
        }
    }
}

fn validity(bits: &Bytes, rows: usize) -> NullBuffer {
    NullBuffer::new(BooleanBuffer::new(Buffer::from_slice_ref(bits), 0, rows))
}
