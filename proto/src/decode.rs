//! Unpacks columns to values, and checks them against the declared types before it builds anything.
//!
//! A received frame may hold anything: a length that does not fit, a claim of a billion rows, an id of no string. All of
//! this is an error, never a panic and never an allocation larger than the frame.

use bytes::Bytes;

use crate::table::ColumnType;
use crate::v1;
use crate::{MAX_ROWS, MAX_STRING_BYTES, MAX_STRINGS};

/// Why a frame was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Malformed {
    /// More rows than a batch may have.
    #[error("a batch claims {0} rows; at most {MAX_ROWS} are allowed")]
    Rows(u64),
    /// The number of columns differs from that in Hello.
    #[error("a batch has {got} columns where {expected} were declared")]
    Columns {
        /// How many the batch has.
        got: usize,
        /// How many Hello declared.
        expected: usize,
    },
    /// A column that cannot be unpacked.
    #[error("column {column}: {what}")]
    Column {
        /// The column's name.
        column: String,
        /// What is wrong.
        what: String,
    },
    /// Strings that do not continue the string table, or are too many.
    #[error("{0}")]
    Strings(String),
}

/// The values of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum DecodedValues {
    /// Every row is NULL.
    Nulls,
    /// Every row is this integer (boolean, timestamp, string id).
    Constant(i64),
    /// Integers, timestamps; booleans as 0 and 1; string ids.
    Ints(Vec<i64>),
    /// Little-endian IEEE 754, `8 * rows` bytes, as received.
    Floats(Bytes),
}

/// A checked column.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedColumn {
    /// The values; those of NULL rows have no meaning.
    pub values: DecodedValues,
    /// A bit a row, least significant first, 1 = present; None when every row is present.
    pub validity: Option<Bytes>,
}

impl DecodedColumn {
    /// Whether `row` has a value.
    pub fn is_valid(&self, row: usize) -> bool {
        !matches!(self.values, DecodedValues::Nulls)
            && self.validity.as_ref().is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1)
    }
}

/// The number of rows that a batch claims; an error if it is above [`MAX_ROWS`].
pub fn rows(batch: &v1::Batch) -> Result<usize, Malformed> {
    let rows = batch.rows as usize;
    if rows > MAX_ROWS { Err(Malformed::Rows(u64::from(batch.rows))) } else { Ok(rows) }
}

/// Unpacks one column of `rows` rows. `strings` is the number of known ids (for text only).
pub fn column(
    name: &str,
    kind: ColumnType,
    nullable: bool,
    column: &v1::Column,
    rows: usize,
    strings: usize,
) -> Result<DecodedColumn, Malformed> {
    let wrong = |what: String| Malformed::Column { column: name.to_owned(), what };
    if column.nulls {
        return if !column.data.is_empty() || !column.validity.is_empty() || column.width != 0 {
            Err(wrong("says that all rows are NULL and carries data".into()))
        } else if !nullable && rows > 0 {
            Err(wrong("NULL where the table allows none".into()))
        } else {
            Ok(DecodedColumn { values: DecodedValues::Nulls, validity: None })
        };
    }
    let width = match column.width {
        0 if kind != ColumnType::Float64 => 0,
        1 | 2 | 4 if kind != ColumnType::Float64 => column.width as usize,
        8 => 8,
        other => return Err(wrong(format!("values of {other} bytes do not fit {}", kind.as_str_name()))),
    };
    if column.data.len() != rows * width {
        return Err(wrong(format!("{} bytes where {} rows of {width} need {}", column.data.len(), rows, rows * width)));
    }
    let validity = match column.validity.len() {
        0 => None,
        _ if !nullable => return Err(wrong("NULL where the table allows none".into())),
        n if n == rows.div_ceil(8) => Some(column.validity.clone()),
        n => return Err(wrong(format!("{n} bytes of validity for {rows} rows"))),
    };
    if kind == ColumnType::Float64 {
        return Ok(DecodedColumn { values: DecodedValues::Floats(column.data.clone()), validity });
    }
    let (low, high) = match kind {
        ColumnType::Int32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        ColumnType::Bool => (0, 1),
        ColumnType::Text => (0, strings as i64 - 1),
        ColumnType::Int64 | ColumnType::Timestamp => (i64::MIN, i64::MAX),
        ColumnType::Float64 | ColumnType::Unspecified => return Err(wrong("has no type".into())),
    };
    let in_range = |value: i64| (low..=high).contains(&value);
    let out_of_range = |value: i64| match kind {
        ColumnType::Text => wrong(format!("string id {value} of {strings}")),
        _ => wrong(format!("{value} does not fit {}", kind.as_str_name())),
    };
    let base = column.base;
    if width == 0 {
        return if in_range(base) || rows == 0 {
            Ok(DecodedColumn { values: DecodedValues::Constant(base), validity })
        } else {
            Err(out_of_range(base))
        };
    }
    // Offsets are unsigned from the smallest value; wrapping covers columns that span more than half of i64.
    let data = &column.data[..];
    let values: Vec<i64> = match width {
        1 => data.iter().map(|b| base.wrapping_add(i64::from(*b))).collect(),
        2 => data.chunks_exact(2).map(|b| base.wrapping_add(i64::from(u16::from_le_bytes([b[0], b[1]])))).collect(),
        4 => data
            .chunks_exact(4)
            .map(|b| base.wrapping_add(i64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))))
            .collect(),
        _ => data
            .chunks_exact(8)
            .map(|b| base.wrapping_add(i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])))
            .collect(),
    };
    if !matches!(kind, ColumnType::Int64 | ColumnType::Timestamp) {
        // The value under a NULL must fit too: a reader of the column may access it.
        let (mut smallest, mut largest) = (i64::MAX, i64::MIN);
        for value in &values {
            smallest = smallest.min(*value);
            largest = largest.max(*value);
        }
        for value in [smallest, largest] {
            if rows > 0 && !in_range(value) {
                return Err(out_of_range(value));
            }
        }
    }
    Ok(DecodedColumn { values: DecodedValues::Ints(values), validity })
}

/// The strings that a connection has received.
#[derive(Debug, Default)]
pub struct ReceivedStrings {
    values: Vec<String>,
    bytes: usize,
}

impl ReceivedStrings {
    /// Adds entries: they must continue the table, or repeat its entries exactly.
    pub fn extend(&mut self, strings: v1::Strings) -> Result<(), Malformed> {
        let first = strings.first as usize;
        if first > self.values.len() {
            return Err(Malformed::Strings(format!("strings from id {first} on, after {} of them", self.values.len())));
        }
        for (index, value) in strings.values.into_iter().enumerate() {
            match self.values.get(first + index) {
                Some(known) if *known == value => continue,
                Some(_) => return Err(Malformed::Strings(format!("string {} said twice, differently", first + index))),
                None => {}
            }
            self.bytes += value.len();
            if self.values.len() >= MAX_STRINGS || self.bytes > MAX_STRING_BYTES {
                return Err(Malformed::Strings(format!(
                    "more than {MAX_STRINGS} strings or {MAX_STRING_BYTES} bytes of them on one connection"
                )));
            }
            self.values.push(value);
        }
        Ok(())
    }

    /// All strings; an id is an index.
    pub fn values(&self) -> &[String] {
        &self.values
    }
}
