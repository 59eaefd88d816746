//! Numbers as people read them.

/// Digits of a float that the table format shows; the other formats are exact.
const SIGNIFICANT: i32 = 6;

/// A float with six significant digits, in plain notation where that is not absurd (durations of 12 µs are 0.000012,
/// not 1.2e-5). Digits before the point are never rounded away.
pub(super) fn float(value: f64, group: bool) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN".into()
        } else if value > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    if value == 0.0 {
        return "0.0".into();
    }
    // The exponent after rounding: 9.9999999 has the one of 10.
    let scientific = format!("{value:.*e}", SIGNIFICANT as usize - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-9..15).contains(&exponent) {
        return format!("{}e{exponent}", trim(mantissa));
    }
    let decimals = (SIGNIFICANT - 1 - exponent).max(1) as usize;
    let text = format!("{value:.decimals$}");
    let text = trim(&text);
    match text.split_once('.') {
        Some((whole, fraction)) if group => format!("{}.{fraction}", grouped(whole)),
        _ => text.to_owned(),
    }
}

/// A number without zeros at the end, but for one after the point.
fn trim(text: &str) -> &str {
    let trimmed = text.trim_end_matches('0');
    if trimmed.ends_with('.') { &text[..trimmed.len() + 1] } else { trimmed }
}

/// Digits grouped by thousands, from five digits on: 1,234,567.
pub(super) fn grouped(digits: &str) -> String {
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", digits),
    };
    if digits.len() < 5 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return format!("{sign}{digits}");
    }
    let mut out = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_well() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "0.0"),
            (1.0, "1.0"),
            (0.1 + 0.2, "0.3"),
            (12.000012, "12.0"),
            (0.000_012_345_678, "0.0000123457"),
            (1.2e-9, "0.0000000012"),
            (1.2e-10, "1.2e-10"),
            (99.999_999, "100.0"),
            (1_234_567.891, "1,234,567.9"),
            (123_456_789_012.0, "123,456,789,012.0"),
            (1e15, "1.0e15"),
            (-2.5e300, "-2.5e300"),
            (-12_345.6, "-12,345.6"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value, true), text, "{value:?}");
        }
        assert_eq!(float(1_234_567.891, false), "1234567.9");
    }

    #[test]
    fn thousands_stand_apart() {
        for (digits, text) in [("1234", "1234"), ("12345", "12,345"), ("-1234567", "-1,234,567"), ("100000", "100,000")]
        {
            assert_eq!(grouped(digits), text);
        }
    }
}
