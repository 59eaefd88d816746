//! Numbers as Nsight Compute prints them in different languages: `21,058,944.5` and `21.058.944,5`.

/// Counts which decimal mark the numbers of a file have.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct DecimalMark {
    point: u64,
    comma: u64,
}

impl DecimalMark {
    /// Counts the decimal mark of a number. One like 1,024 counts for neither, because it can be read both ways.
    pub(crate) fn see(&mut self, text: &str) {
        let text = text.trim();
        if !is_numeric(text) {
            return;
        }
        let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
        let count = |mark: char| mantissa.matches(mark).count();
        let (points, commas) = (count('.'), count(','));
        let mark = match (mantissa.rfind('.'), mantissa.rfind(',')) {
            (Some(point), Some(comma)) => (point > comma).then_some('.').or(Some(',')),
            (Some(_), None) if points > 1 => Some(','),
            (None, Some(_)) if commas > 1 => Some('.'),
            (Some(offset), None) if !could_group(mantissa, offset) => Some('.'),
            (None, Some(offset)) if !could_group(mantissa, offset) => Some(','),
            _ => None,
        };
        match mark {
            Some('.') => self.point += 1,
            Some(_) => self.comma += 1,
            None => {}
        }
    }

    /// Parses a number; None for other text, and for a number whose groups are not valid.
    pub(crate) fn parse(self, text: &str) -> Option<f64> {
        let text = text.trim();
        if !is_numeric(text) {
            return None;
        }
        let mark = if self.comma > self.point { ',' } else { '.' };
        let (number, exponent) = text.find(['e', 'E']).map_or((text, ""), |offset| text.split_at(offset));
        let (whole, fraction) = number.split_once(mark).unwrap_or((number, ""));
        let digits = whole.trim_start_matches(['-', '+']);
        let mut groups = digits.split(|c: char| !c.is_ascii_digit());
        let first = groups.next().unwrap_or("").len();
        let is_grouped = digits.contains(|c: char| !c.is_ascii_digit());
        if is_grouped && (!(1..=3).contains(&first) || !groups.all(|group| group.len() == 3))
            || !fraction.bytes().all(|byte| byte.is_ascii_digit())
        {
            return None;
        }
        let plain: String = whole.chars().filter(|c| c.is_ascii_digit() || matches!(c, '-' | '+')).collect();
        format!("{plain}.{fraction}{exponent}").parse().ok().filter(|value: &f64| value.is_finite())
    }
}

/// Whether a text consists of digits and of what can stand between them: marks, spaces of any width, apostrophes, an exponent.
fn is_numeric(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']);
    text.len() <= 64
        && digits.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | ','))
        && digits.contains(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| {
            c.is_ascii_digit()
                || matches!(c, '.' | ',' | ' ' | '\u{a0}' | '\u{202f}' | '\'' | '\u{2019}' | 'e' | 'E' | '-' | '+')
        })
}

/// Whether the only mark of a number, at `offset`, can stand between thousands.
fn could_group(mantissa: &str, offset: usize) -> bool {
    let (before, after) = (mantissa[..offset].trim_start_matches(['-', '+']), &mantissa[offset + 1..]);
    after.len() == 3 && (1..=3).contains(&before.len()) && !before.starts_with('0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seen: &[&str], text: &str) -> Option<f64> {
        let mut mark = DecimalMark::default();
        seen.iter().for_each(|text| mark.see(text));
        mark.parse(text)
    }

    #[test]
    fn a_file_s_other_numbers_say_how_one_is_to_be_read() {
        for (seen, text, expected) in [
            (&[][..], "21,058,944", Some(21_058_944.0)),
            (&[], "4,963,609,951.19", Some(4_963_609_951.19)),
            (&[], "61.84", Some(61.84)),
            (&[], "1,024", Some(1024.0)),
            (&["65,77"], "1,024", Some(1.024)),
            (&["65,77"], "1.024", Some(1024.0)),
            (&["0,123"], "12.319.469,5", Some(12_319_469.5)),
            (&["12.319.469"], "61,84", Some(61.84)),
            (&["65,77"], "12\u{202f}319\u{202f}469,25", Some(12_319_469.25)),
            (&["65,77", "1.5", "2.5"], "1.5", Some(1.5)),
            (&[], "12\u{2019}319\u{2019}469", Some(12_319_469.0)),
            (&[], "-1,234.5", Some(-1234.5)),
            (&[], "1e+06", Some(1_000_000.0)),
            (&[], "65,77", None),
            (&[], "1.2.3", None),
            (&[], "n/a", None),
            (&[], "CachePreferNone", None),
            (&[], "(256, 1, 1)", None),
            (&[], "", None),
            (&[], "-", None),
            (&[], "1e999", None),
            (&[], "7 %", None),
        ] {
            assert_eq!(of(seen, text), expected, "{text} after {seen:?}");
        }
    }
}
