//! How much memory rows may take where nobody says.

use probe_proto::env::PROBE_MEMORY;

use crate::error::{Error, Result};

/// The most that is taken without being asked.
const MOST: usize = 2 << 30;
/// What is taken where the machine does not say how much it has.
const UNKNOWN: usize = 512 << 20;
/// Below this a query's newest segments would not stay.
const LEAST: usize = 1 << 20;

/// Bytes that rows may take: PROBE_MEMORY, else a quarter of the machine's memory, at most 2 GiB.
pub fn memory_limit() -> Result<usize> {
    match std::env::var(PROBE_MEMORY) {
        Ok(text) if !text.is_empty() => parse(&text),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(machine().map_or(UNKNOWN, |bytes| (bytes / 4).min(MOST))),
        Err(error) => Err(Error::usage(format!("{PROBE_MEMORY}: {error}"))),
    }
}

/// `1073741824`, `512M`, `2G`.
fn parse(text: &str) -> Result<usize> {
    let wrong = |what: &str| {
        Error::usage(format!("{PROBE_MEMORY} is '{text}': {what}")).hint("bytes, or like 512M or 2G; at least 1M")
    };
    let bytes = size(text).ok_or_else(|| wrong("that is no size"))?;
    if bytes < LEAST { Err(wrong("that is too little")) } else { Ok(bytes) }
}

/// A number of bytes as people write it: `1073741824`, `512M`, `2G`.
pub(crate) fn size(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: usize = digits.parse().ok()?;
    let shift = match unit.trim().to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// Memory of the machine in bytes, or of the control group that this process is in where that has less.
fn machine() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)?;
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = group.and_then(|text| text.trim().parse::<usize>().ok());
    Some(limit.map_or(total, |limit| limit.min(total)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse("1073741824").unwrap(), 1 << 30);
        for text in ["512M", "512m", " 512MB", "512 MiB", "524288K"] {
            assert_eq!(parse(text).unwrap(), 512 << 20, "{text}");
        }
        assert_eq!(parse("2G").unwrap(), 2 << 30);
        for text in ["", "G", "2X", "-1", "1.5G", "100", "99999999999999999999", "99999999T"] {
            assert!(parse(text).unwrap_err().hint_text().is_some(), "{text}");
        }
    }

    #[test]
    fn this_machine_says_how_much_it_has() {
        assert!(machine().unwrap() > LEAST);
    }
}
