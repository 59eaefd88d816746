//! Amounts as people write and read them: durations, sizes, numbers of rows.

/// A duration as people write it: 30s, 500ms, 2m; a number alone is seconds.
pub(super) fn duration(text: &str) -> Result<std::time::Duration, String> {
    let parsed = match text.parse::<f64>() {
        Ok(seconds) => std::time::Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    };
    match parsed {
        Ok(duration) if duration.is_zero() => Err("it has to be more than nothing".into()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write it like 30s, 500ms or 2m")),
    }
}

/// A number of bytes as people write it: 65536, 512K, 16M.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match text[digits.len()..].trim_end_matches("iB").trim_end_matches('B').to_ascii_uppercase().as_str() {
        "" => Some(1_u64),
        "K" => Some(1 << 10),
        "M" => Some(1 << 20),
        "G" => Some(1 << 30),
        _ => None,
    };
    let number = digits.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    number.ok_or_else(|| "write it like 65536, 512K or 16M".into())
}

/// "1 row", "2 rows".
pub(super) fn count(rows: usize) -> String {
    if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        assert_eq!(duration("1.5").unwrap().as_millis(), 1500);
        assert_eq!(duration("2m").unwrap().as_secs(), 120);
        assert!(["0", "-1", "1e400", "soon", "NaN"].iter().all(|text| duration(text).is_err()));
        assert_eq!(bytes("16M"), Ok(16 << 20));
        assert_eq!(bytes("512KiB"), Ok(512 << 10));
        assert_eq!(bytes("7"), Ok(7));
        assert!(["", "M", "1X", "99999999999G", "-1"].iter().all(|text| bytes(text).is_err()));
    }
}
