//! The collector's clock, as messages and tables carry it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in nanoseconds since 1970.
pub fn unix_ns() -> i64 {
    ns_of(SystemTime::now())
}

/// A time in nanoseconds since 1970; 0 for an earlier one.
pub fn ns_of(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Nanoseconds as seconds.
pub fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}
