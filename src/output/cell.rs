//! Values as the table format shows them.

use std::fmt::Write;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, TimeUnit};
use arrow::temporal_conversions::{
    timestamp_ms_to_datetime, timestamp_ns_to_datetime, timestamp_s_to_datetime, timestamp_us_to_datetime,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use probe_proto::table::IDENTITY;
use probe_proto::tables::TABLES;

use super::number;
use super::writer::io_error;

/// How NULL is shown.
pub(super) const NULL: &str = "NULL";

/// Longer text is cut as it is read, so that little is held in memory; other formats have it whole.
const MAX_CHARACTERS: usize = 4096;

/// Alignment of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alignment {
    /// Text, times.
    Left,
    /// Integers.
    Right,
    /// Floats: their points below each other.
    Point,
}

impl Alignment {
    pub(super) fn of(kind: &DataType) -> Self {
        match kind {
            DataType::Dictionary(_, values) => Self::of(values),
            kind if kind.is_floating() => Self::Point,
            kind if kind.is_numeric() => Self::Right,
            _ => Self::Left,
        }
    }
}

/// Whether a value of this type may be cut: text may; a number or a time would become another one.
pub(super) fn may_cut(kind: &DataType) -> bool {
    Alignment::of(kind) == Alignment::Left && !kind.is_temporal() && *kind != DataType::Boolean
}

/// Whether a column's integers are amounts, whose thousands may stand apart, and not names like a pid or a step:
/// declared columns without a unit are names.
pub(super) fn is_amount(field: &Field) -> bool {
    let mut declared = TABLES.iter().flat_map(|table| table.columns).chain(IDENTITY);
    !declared.any(|column| column.name == field.name() && column.unit.is_empty())
}

/// Every value of a column as text, None where it is NULL.
pub(super) fn texts(array: &dyn Array, group: bool) -> std::io::Result<Vec<Option<String>>> {
    let each = |text: &dyn Fn(usize) -> std::io::Result<String>| {
        (0..array.len()).map(|row| if array.is_valid(row) { text(row).map(Some) } else { Ok(None) }).collect()
    };
    match array.data_type() {
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>();
            each(&|row| Ok(number::float(values.value(row), group)))
        }
        DataType::Float32 => {
            let values = array.as_primitive::<Float32Type>();
            each(&|row| Ok(number::float(f64::from(values.value(row)), group)))
        }
        DataType::Timestamp(unit, _) => {
            let values = arrow::compute::cast(array, &DataType::Int64).map_err(io_error)?;
            let values = values.as_primitive::<arrow::datatypes::Int64Type>();
            each(&|row| Ok(time(values.value(row), *unit)))
        }
        kind => {
            let options = FormatOptions::new().with_null(NULL);
            let formatter = ArrayFormatter::try_new(array, &options).map_err(io_error)?;
            let whole = kind.is_integer() && group;
            each(&|row| {
                let text = formatter.value(row).try_to_string().map_err(io_error)?;
                Ok(if whole { number::grouped(&text) } else { one_line(&text) })
            })
        }
    }
}

/// A point in time as SQL takes it, in UTC, to the microsecond where its unit is finer than seconds.
fn time(value: i64, unit: TimeUnit) -> String {
    let time = match unit {
        TimeUnit::Second => timestamp_s_to_datetime(value),
        TimeUnit::Millisecond => timestamp_ms_to_datetime(value),
        TimeUnit::Microsecond => timestamp_us_to_datetime(value),
        TimeUnit::Nanosecond => timestamp_ns_to_datetime(value),
    };
    let format = if unit == TimeUnit::Second { "%Y-%m-%d %H:%M:%SZ" } else { "%Y-%m-%d %H:%M:%S%.6fZ" };
    time.map_or_else(|| value.to_string(), |time| time.format(format).to_string())
}

/// Text on one line, without anything that a terminal would obey: names that training code gives its modules are not trusted.
fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, c) in text.chars().enumerate() {
        if index == MAX_CHARACTERS {
            out.push('…');
            break;
        }
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_of_a_cell() {
        assert_eq!(one_line("a\nb\tc\x1b[31m"), "a\\nb\\tc\\u{1b}[31m");
        assert_eq!(one_line(&"x".repeat(5000)).chars().count(), MAX_CHARACTERS + 1);
    }

    #[test]
    fn names_are_no_amounts() {
        let field = |name: &str| Field::new(name, DataType::Int64, true);
        for name in ["pid", "step", "thread", "seq"] {
            assert!(!is_amount(&field(name)), "{name}");
        }
        for name in ["bytes", "executions", "SUM(bytes)"] {
            assert!(is_amount(&field(name)), "{name}");
        }
    }
}
