//! A column of a batch as it is stored, and its conversion to an Arrow array for a query.

use std::sync::Arc;

use arrow::array::builder::NullBufferBuilder;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int32Array, Int64Array, TimestampNanosecondArray,
    UInt32Array, new_null_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Int64Type};
use arrow::error::ArrowError;
use bytes::Bytes;
use datafusion::common::ScalarValue;
use probe_proto::decode::{DecodedColumn, DecodedValues};
use probe_proto::table::ColumnType;

use super::integers::{narrow, offsets_array, wide, widened};
use super::packed::PackedColumn;
use super::schema::{arrow_type, utc};
use super::strings::StringDictionary;
use super::times;

/// The values of a column, as many as the batch has rows.
#[derive(Debug, Clone)]
pub enum ColumnCells {
    /// Every row is NULL.
    Nulls,
    /// Every row that is not NULL has this value: an integer, a timestamp, a boolean as 0 or 1, the id of a string.
    Constant {
        value: i64,
        /// The rows that have the value; None for all.
        validity: Option<NullBuffer>,
    },
    /// Integers and timestamps as differences to the smallest one, in as few bytes as the largest needs ([`narrow`]); floats
    /// likewise where all of them are times, as multiples ([`times`]).
    Offsets {
        /// The smallest value.
        base: i64,
        /// The differences, unsigned.
        offsets: ArrayRef,
    },
    /// Ids of strings, unsigned, in as few bytes as the largest needs.
    Text(ArrayRef),
    /// The array that SQL sees: other floats, booleans, integers that are too far apart, and every column of the collector's own
    /// tables.
    Array(ArrayRef),
}

impl ColumnCells {
    /// The cells of checked values, which are copied: a reference would keep their whole frame in memory, uncounted.
    pub fn new(decoded: DecodedColumn, kind: ColumnType, rows: usize) -> Self {
        let validity = match decoded.validity.map(|bits| validity(&bits, rows)) {
            Some(validity) if validity.null_count() == rows => return Self::Nulls,
            Some(validity) if validity.null_count() > 0 => Some(validity),
            _ => None,
        };
        match decoded.values {
            DecodedValues::Nulls => Self::Nulls,
            DecodedValues::Constant(value) => Self::Constant { value, validity },
            DecodedValues::Floats(bytes) => {
                let mut values: Vec<f64> = bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
                match times::narrow(&mut values, validity.as_ref()) {
                    Some((base, offsets)) => Self::Offsets { base, offsets },
                    None => Self::Array(Arc::new(Float64Array::new(values.into(), validity))),
                }
            }
            DecodedValues::Ints(values) => Self::ints(values, validity, kind),
        }
    }

    /// The cells of an array that SQL sees.
    pub fn of_array(array: &ArrayRef) -> Self {
        if array.null_count() == array.len() { Self::Nulls } else { Self::Array(Arc::clone(array)) }
    }

    /// The cells of integers of any kind, or of the multiples of times. A row that is NULL has some value between those of the others.
    fn ints(values: Vec<i64>, validity: Option<NullBuffer>, kind: ColumnType) -> Self {
        let (low, high) =
            values.iter().fold((i64::MAX, i64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
        if kind == ColumnType::Bool {
            let values = BooleanBuffer::collect_bool(values.len(), |row| values[row] != 0);
            return Self::Array(Arc::new(BooleanArray::new(values, validity)));
        }
        if low == high && kind != ColumnType::Float64 {
            return Self::Constant { value: low, validity };
        }
        // Ids are looked up without a base.
        let base = if kind == ColumnType::Text { 0 } else { low };
        match (narrow(&values, base, high, validity.clone()), kind) {
            (Some(ids), ColumnType::Text) => Self::Text(ids),
            (Some(offsets), _) => Self::Offsets { base, offsets },
            (None, _) => Self::Array(wide(values, validity, kind)),
        }
    }

    /// Number of rows that are NULL.
    pub fn nulls(&self, rows: usize) -> usize {
        match self {
            Self::Nulls => rows,
            Self::Constant { validity, .. } => validity.as_ref().map_or(0, NullBuffer::null_count),
            Self::Array(array) | Self::Text(array) | Self::Offsets { offsets: array, .. } => array.null_count(),
        }
    }

    /// What the values take in memory (bytes).
    pub fn bytes(&self) -> usize {
        match self {
            Self::Nulls | Self::Constant { validity: None, .. } => 0,
            Self::Constant { validity: Some(validity), .. } => validity.buffer().capacity(),
            Self::Array(array) | Self::Text(array) | Self::Offsets { offsets: array, .. } => {
                array.get_array_memory_size()
            }
        }
    }

    /// `length` rows from `offset` on, without conversion; their text is in `strings`.
    pub fn packed(
        &self,
        kind: ColumnType,
        offset: usize,
        length: usize,
        strings: &StringDictionary,
    ) -> Result<PackedColumn, ArrowError> {
        let text = |ids| PackedColumn::Text { ids, values: strings.values() };
        Ok(match self {
            Self::Nulls => PackedColumn::Constant(null(kind)?),
            Self::Array(array) => PackedColumn::Array(slice(array, offset, length)),
            Self::Text(ids) => text(slice(ids, offset, length)),
            Self::Offsets { base, offsets } => {
                PackedColumn::Offsets { base: *base, offsets: slice(offsets, offset, length), kind }
            }
            Self::Constant { value, validity: None } => PackedColumn::Constant(scalar(*value, kind, strings)?),
            Self::Constant { value, validity: Some(validity) } => {
                let array = constant(*value, kind, length, Some(validity.slice(offset, length)));
                if kind == ColumnType::Text { text(array) } else { PackedColumn::Array(array) }
            }
        })
    }

    /// The rows of all of `parts` (each with its number of rows), in order.
    pub fn concat(parts: &[(&Self, usize)], kind: ColumnType) -> Result<Self, ArrowError> {
        if parts.iter().all(|(cells, _)| matches!(cells, Self::Nulls)) {
            return Ok(Self::Nulls);
        }
        let is_array = |(cells, _): &(&Self, usize)| matches!(cells, Self::Array(_));
        if kind == ColumnType::Bool || kind == ColumnType::Float64 && parts.iter().any(is_array) {
            let array = |(cells, rows): &(&Self, usize)| match cells {
                Self::Constant { value, validity } => constant(*value, kind, *rows, validity.clone()),
                Self::Offsets { base, offsets } => offsets_array(offsets, *base, kind),
                Self::Array(array) => Arc::clone(array),
                _ => new_null_array(&arrow_type(kind), *rows),
            };
            let arrays: Vec<ArrayRef> = parts.iter().map(array).collect();
            return Ok(Self::Array(concat(&arrays.iter().map(AsRef::as_ref).collect::<Vec<_>>())?));
        }
        // A row that is NULL gets a value that another row has, so that the result needs no more bytes.
        let some = parts.iter().find_map(|(cells, _)| cells.some()).unwrap_or_default();
        let (mut values, mut valid) = (Vec::new(), NullBufferBuilder::new(0));
        for (cells, rows) in parts {
            let validity = match cells {
                Self::Nulls => {
                    values.resize(values.len() + rows, some);
                    valid.append_n_nulls(*rows);
                    continue;
                }
                Self::Constant { value, validity } => {
                    values.resize(values.len() + rows, *value);
                    validity.as_ref()
                }
                Self::Offsets { base, offsets } => {
                    values.extend(widened(offsets, *base));
                    offsets.nulls()
                }
                Self::Text(ids) => {
                    values.extend(widened(ids, 0));
                    ids.nulls()
                }
                Self::Array(array) => {
                    let array = cast(array, &DataType::Int64)?;
                    values.extend_from_slice(array.as_primitive::<Int64Type>().values());
                    valid_of(&mut valid, array.nulls(), *rows);
                    continue;
                }
            };
            valid_of(&mut valid, validity, *rows);
        }
        Ok(Self::ints(values, valid.finish(), kind))
    }

    /// A value that some row has, or could have without the need of more bytes.
    fn some(&self) -> Option<i64> {
        match self {
            Self::Nulls => None,
            Self::Constant { value, .. } => Some(*value),
            Self::Offsets { base, .. } => Some(*base),
            Self::Text(_) => Some(0),
            Self::Array(array) => {
                cast(array, &DataType::Int64).ok()?.as_primitive_opt::<Int64Type>()?.iter().flatten().next()
            }
        }
    }
}

fn valid_of(valid: &mut NullBufferBuilder, validity: Option<&NullBuffer>, rows: usize) {
    match validity {
        Some(validity) => valid.append_buffer(validity),
        None => valid.append_n_non_nulls(rows),
    }
}

/// Rows of an array; the array itself where they are all of them.
fn slice(array: &ArrayRef, offset: usize, length: usize) -> ArrayRef {
    if offset == 0 && length == array.len() { Arc::clone(array) } else { array.slice(offset, length) }
}

fn null(kind: ColumnType) -> Result<ScalarValue, ArrowError> {
    ScalarValue::try_from(&arrow_type(kind)).map_err(|error| ArrowError::ComputeError(error.to_string()))
}

/// One value in SQL's type. The `value` of a text is its id.
fn scalar(value: i64, kind: ColumnType, strings: &StringDictionary) -> Result<ScalarValue, ArrowError> {
    Ok(match kind {
        ColumnType::Int32 => ScalarValue::Int32(Some(value as i32)),
        ColumnType::Bool => ScalarValue::Boolean(Some(value != 0)),
        ColumnType::Timestamp => ScalarValue::TimestampNanosecond(Some(value), Some(utc())),
        ColumnType::Text => {
            let values = strings.values();
            let text = usize::try_from(value).ok().filter(|id| *id < values.len()).map(|id| values.value(id));
            let text = text.ok_or_else(|| ArrowError::ComputeError(format!("no text has the id {value}")))?;
            ScalarValue::Utf8View(Some(text.to_owned()))
        }
        ColumnType::Int64 | ColumnType::Float64 | ColumnType::Unspecified => ScalarValue::Int64(Some(value)),
    })
}

/// An array with one value in every row; text as ids.
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
