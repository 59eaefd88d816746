//! One value as a person reads it in a table.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, TimestampNanosecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::error::Result;

/// Digits that a float keeps. The other formats have all of them.
const DIGITS: i32 = 6;

/// Every value of a column as text; None is NULL.
pub fn texts(column: &ArrayRef) -> Result<Vec<Option<String>>> {
    let rows = 0..column.len();
    let at = |row: usize, text: String| (!column.is_null(row)).then_some(text);
    Ok(match column.data_type() {
        DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>();
            rows.map(|row| at(row, float(values.value(row)))).collect()
        }
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>();
            rows.map(|row| at(row, float(f64::from(values.value(row))))).collect()
        }
        DataType::Timestamp(arrow::datatypes::TimeUnit::Nanosecond, _) => {
            let values = column.as_primitive::<TimestampNanosecondType>();
            rows.map(|row| at(row, time(values.value(row)))).collect()
        }
        _ => {
            let options = FormatOptions::default();
            let formatter = ArrayFormatter::try_new(column, &options)?;
            rows.map(|row| at(row, formatter.value(row).to_string())).collect()
        }
    })
}

/// Whether values of this type stand to the right.
pub fn is_number(kind: &DataType) -> bool {
    kind.is_numeric()
}

/// Six digits, without an exponent where that stays short: 0.00123457, 1234.57, 1.5e-7.
pub fn float(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { value.to_string() };
    }
    let exponent = value.abs().log10().floor() as i32;
    if !(-5..15).contains(&exponent) {
        let text = format!("{value:.*e}", DIGITS as usize - 1);
        return match text.split_once('e') {
            Some((digits, exponent)) => format!("{}e{exponent}", trim(digits)),
            None => text,
        };
    }
    let decimals = (DIGITS - 1 - exponent).max(0) as usize;
    trim(&format!("{value:.decimals$}")).to_owned()
}

/// Without zeros that say nothing.
fn trim(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// UTC to the microsecond.
pub fn time(nanoseconds: i64) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(nanoseconds)) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S.%6fZ").to_string(),
        Err(_) => nanoseconds.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_six_digits_and_no_noise() {
        let cases = [
            (0.1 + 0.2, "0.3"),
            (0.001234567, "0.00123457"),
            (1234.5678, "1234.57"),
            (1_234_567.8, "1234568"),
            (1e-7, "1e-7"),
            (1.23456789e-9, "1.23457e-9"),
            (2.5e20, "2.5e20"),
            (-0.5, "-0.5"),
            (100.0, "100"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
            (0.0, "0"),
            (9.999_999_9, "10"),
        ];
        for (value, expected) in cases {
            assert_eq!(float(value), expected, "{value:e}");
        }
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(time(1_700_000_000_123_456_789), "2023-11-14 22:13:20.123456Z");
    }
}
