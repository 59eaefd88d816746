//! Numbers as traces write them: times as decimal text, others in several forms.

/// Most nanoseconds either way, so that sums and differences of two stay within 64 bits.
const MAX_TIME: i128 = i64::MAX as i128 / 4;

/// Microseconds in decimal text as whole nanoseconds, rounded; None where it is no such number, or an absurd one.
pub(crate) fn nanoseconds(text: &str) -> Option<i64> {
    let text = text.trim().trim_matches('"');
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !plain(whole) || !plain(fraction) || whole.len() > 20 {
        return by_float(text);
    }
    let mut nanoseconds = whole.parse::<i128>().ok()? * 1000;
    let mut scale = 100;
    for digit in fraction.bytes().take(3) {
        nanoseconds += i128::from(digit - b'0') * scale;
        scale /= 10;
    }
    if fraction.as_bytes().get(3).is_some_and(|digit| *digit >= b'5') {
        nanoseconds += 1;
    }
    let nanoseconds = if negative { -nanoseconds } else { nanoseconds };
    (nanoseconds.abs() <= MAX_TIME).then_some(nanoseconds as i64)
}

/// Parses a number with an exponent, which few writers use.
fn by_float(text: &str) -> Option<i64> {
    let nanoseconds = (text.parse::<f64>().ok()? * 1000.0).round();
    (nanoseconds.abs() <= MAX_TIME as f64).then_some(nanoseconds as i64)
}

/// A number that names something, such as an external id: those of 64 bits come without a sign, and have one in tables.
pub(crate) fn integer(text: &str) -> Option<i64> {
    quantity(text).or_else(|| text.trim().trim_matches('"').parse::<u64>().map(|value| value as i64).ok())
}

/// A whole number, also as text or with a fraction of zero; None where 64 bits with a sign do not hold it.
pub(crate) fn quantity(text: &str) -> Option<i64> {
    let text = text.trim().trim_matches('"');
    text.parse().ok().or_else(|| {
        let value: f64 = text.parse().ok()?;
        (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64)
    })
}

/// A finite number, also as text.
pub(crate) fn float(text: &str) -> Option<f64> {
    text.trim().trim_matches('"').parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_every_nanosecond() {
        for (text, expected) in [
            ("1365627863757.064", Some(1_365_627_863_757_064)),
            ("1623142623460111", Some(1_623_142_623_460_111_000)),
            ("0", Some(0)),
            ("-1.5", Some(-1500)),
            ("0.0005", Some(1)),
            ("1e3", Some(1_000_000)),
            ("\"7\"", Some(7000)),
            ("99999999999999999999", None),
            ("NaN", None),
            ("", None),
        ] {
            assert_eq!(nanoseconds(text), expected, "{text}");
        }
        assert_eq!(integer("18446744073709551615"), Some(-1));
        assert_eq!(quantity("18446744073709551615"), None);
        assert_eq!(quantity("-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer("7.0"), Some(7));
        assert_eq!(float("NaN"), None);
    }
}
