//! `--param NAME=VALUE`: a value for `$NAME` in a query.

use datafusion::common::ScalarValue;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// How values are given.
const FORM: &str = "write it like last=100, or like name:text=100 to say its type";
/// The types that can be said.
const TYPES: &str = "the types are int, float, bool, text and timestamp";

/// NAME=VALUE or NAME:TYPE=VALUE.
pub(super) fn parameter(text: &str) -> Result<(String, ScalarValue), String> {
    let (name, value) = text.split_once('=').ok_or(FORM)?;
    let (name, kind) = name.split_once(':').map_or((name, None), |(name, kind)| (name, Some(kind)));
    // A number is the position of a ? or of a $1.
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name && !is_number {
        return Err(format!("'{name}' is not a name of a parameter: use letters, digits and _; {FORM}"));
    }
    let value = match kind {
        None => guessed(value),
        Some(kind) => typed(kind, value).map_err(|why| format!("{name}: {why}"))?,
    };
    Ok((name.to_owned(), value))
}

/// A value whose type is the first one that it can be read as.
fn guessed(value: &str) -> ScalarValue {
    let numeric = value.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    match value {
        "NULL" | "null" => ScalarValue::Null,
        "true" | "false" => ScalarValue::Boolean(Some(value == "true")),
        _ if numeric && let Ok(number) = value.parse() => ScalarValue::Int64(Some(number)),
        _ if numeric && let Ok(number) = value.parse() => ScalarValue::Float64(Some(number)),
        _ => ScalarValue::Utf8(Some(value.to_owned())),
    }
}

fn typed(kind: &str, value: &str) -> Result<ScalarValue, String> {
    let wrong = |what: &str| format!("'{value}' is not {what}");
    Ok(match kind {
        "int" => ScalarValue::Int64(Some(value.parse().map_err(|_| wrong("an integer of 64 bits"))?)),
        "float" => ScalarValue::Float64(Some(value.parse().map_err(|_| wrong("a float"))?)),
        "bool" => ScalarValue::Boolean(Some(value.parse().map_err(|_| wrong("true or false"))?)),
        "text" => ScalarValue::Utf8(Some(value.to_owned())),
        "timestamp" => {
            let time = timestamp(value).ok_or_else(|| wrong("a time like 2026-11-23T15:04:05.123456789Z"))?;
            ScalarValue::TimestampNanosecond(Some(time), Some("UTC".into()))
        }
        other => return Err(format!("there is no type '{other}'; {TYPES}")),
    })
}

/// Nanoseconds since 1970; a time without a zone is one in UTC, as in SQL.
fn timestamp(text: &str) -> Option<i64> {
    let time = text.parse::<Timestamp>().ok().or_else(|| {
        let time = text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?;
        Some(time.timestamp())
    });
    i64::try_from(time?.as_nanosecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_type_that_it_looks_like_or_that_is_said() {
        let time = |ns| ScalarValue::TimestampNanosecond(Some(ns), Some("UTC".into()));
        for (text, expected) in [
            ("last=100", ScalarValue::Int64(Some(100))),
            ("last=-9223372036854775808", ScalarValue::Int64(Some(i64::MIN))),
            ("x=9223372036854775808", ScalarValue::Float64(Some(9223372036854775808.0))),
            ("x=-1.5e3", ScalarValue::Float64(Some(-1500.0))),
            ("x=1.2.3", ScalarValue::Utf8(Some("1.2.3".into()))),
            ("x=inf", ScalarValue::Utf8(Some("inf".into()))),
            ("x:float=-inf", ScalarValue::Float64(Some(f64::NEG_INFINITY))),
            ("x=true", ScalarValue::Boolean(Some(true))),
            ("x=NULL", ScalarValue::Null),
            ("x:text=NULL", ScalarValue::Utf8(Some("NULL".into()))),
            ("x:text=100", ScalarValue::Utf8(Some("100".into()))),
            ("x=a=b", ScalarValue::Utf8(Some("a=b".into()))),
            ("x=", ScalarValue::Utf8(Some(String::new()))),
            ("t:timestamp=1970-01-01T00:00:01.000000001Z", time(1_000_000_001)),
            ("t:timestamp=1970-01-01 01:00:01+01:00", time(1_000_000_000)),
            ("t:timestamp=1970-01-01 00:00:01", time(1_000_000_000)),
        ] {
            let name = text.split([':', '=']).next().unwrap();
            assert_eq!(parameter(text).unwrap(), (name.to_owned(), expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_value_says_why() {
        for (text, says) in [
            ("last", "write it like"),
            ("1a=2", "not a name"),
            ("=2", "not a name"),
            ("x:int=1.5", "x: '1.5' is not an integer"),
            ("x:int=9223372036854775808", "64 bits"),
            ("x:float=one", "not a float"),
            ("x:bool=yes", "true or false"),
            ("x:timestamp=soon", "a time like"),
            ("x:timestamp=9999-01-01T00:00:00Z", "a time like"),
            ("x:date=1", "the types are int"),
        ] {
            let error = parameter(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
