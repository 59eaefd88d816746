//! Amounts in words of a page: bytes, durations, and numbers with four digits.

pub(super) fn megabytes(megabytes: f64) -> String {
    if megabytes < 1000.0 { format!("{megabytes:.0} MB") } else { format!("{:.2} GB", megabytes / 1000.0) }
}

pub(super) fn bytes(bytes: i64) -> String {
    match bytes {
        ..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{:.1} ms", seconds * 1e3),
        0.01..1.0 => format!("{:.0} ms", seconds * 1e3),
        1.0..180.0 => format!("{seconds:.1} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}

/// A number with four significant digits.
pub(super) fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = 3 - value.abs().log10().floor() as i64;
    match digits {
        0..=9 => {
            let text = format!("{value:.*}", digits as usize);
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
        ..0 => format!("{value:.0}"),
        _ => format!("{value:.3e}"),
    }
}
