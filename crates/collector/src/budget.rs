//! How much memory and disk the rows of a run may take.

use probe_common::error::{Error, Result};
use probe_common::sizes::parse_size;
use probe_proto::env::{PROBE_DISK, PROBE_MEMORY};

/// Largest default of the memory limit (bytes).
const MAX_DEFAULT_BYTES: usize = 2 << 30;
/// Memory limit where the machine's memory is not known (bytes).
const DEFAULT_BYTES: usize = 512 << 20;
/// Smallest limit (bytes): below it a query's newest segments would not stay.
const MIN_BYTES: u64 = 1 << 20;
/// Default of the disk limit (bytes).
const DISK: u64 = 10 << 30;

/// Bytes that rows may take in memory: PROBE_MEMORY, else a quarter of the machine's memory, at most 2 GiB.
pub fn memory_limit() -> Result<usize> {
    let limit = limit_from(PROBE_MEMORY)?.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    Ok(limit.unwrap_or_else(|| machine().map_or(DEFAULT_BYTES, |bytes| (bytes / 4).min(MAX_DEFAULT_BYTES))))
}

/// Bytes that a run may take on disk: PROBE_DISK, else 10 GiB.
pub fn disk_limit() -> Result<u64> {
    Ok(limit_from(PROBE_DISK)?.unwrap_or(DISK))
}

/// The size that a variable says; None where it is not set.
fn limit_from(variable: &str) -> Result<Option<u64>> {
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => parse(variable, &text).map(Some),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(Error::usage(variable).because(error)),
    }
}

/// Reads a size such as `1073741824`, `512M` or `2G`.
fn parse(variable: &str, text: &str) -> Result<u64> {
    let wrong = |what: &str| {
        Error::usage(format!("{variable} is '{text}': {what}")).hint("bytes, or like 512M or 2G; at least 1M")
    };
    let bytes = parse_size(text).ok_or_else(|| wrong("that is not a size"))?;
    if bytes < MIN_BYTES { Err(wrong("that is too little")) } else { Ok(bytes) }
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
        assert_eq!(parse(PROBE_MEMORY, "1073741824").unwrap(), 1 << 30);
        for text in ["512M", "512m", " 512MB", "512 MiB", "524288K"] {
            assert_eq!(parse(PROBE_MEMORY, text).unwrap(), 512 << 20, "{text}");
        }
        assert_eq!(parse(PROBE_MEMORY, "2G").unwrap(), 2 << 30);
        for text in ["", "G", "2X", "-1", "1.5G", "100", "99999999999999999999", "99999999T"] {
            assert!(parse(PROBE_MEMORY, text).unwrap_err().hint_text().is_some(), "{text}");
        }
    }

    #[test]
    fn this_machine_says_how_much_it_has() {
        assert!(machine().unwrap() > MIN_BYTES as usize);
    }
}
