//! A window of steps, as text and in SQL.

use std::fmt;
use std::str::FromStr;

/// Steps from one to another, both included; open where an end is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepWindow {
    /// The first step.
    pub first: Option<i64>,
    /// The last step.
    pub last: Option<i64>,
}

impl FromStr for StepWindow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let step = |text: &str| text.parse().ok().filter(|step: &i64| *step >= 0);
        let end = |text: &str| if text.is_empty() { Some(None) } else { step(text).map(Some) };
        let window = match text.split_once("..") {
            Some((first, last)) => end(first).zip(end(last)).map(|(first, last)| Self { first, last }),
            None => step(text).map(|one| Self { first: Some(one), last: Some(one) }),
        };
        let window = window.filter(|window| window.first.is_some() || window.last.is_some());
        let window = window.ok_or("write it like 10..50 (both included), 100.. or ..99")?;
        match (window.first, window.last) {
            (Some(first), Some(last)) if first > last => Err(format!("it ends before it begins: {last}..{first}?")),
            _ => Ok(window),
        }
    }
}

impl fmt::Display for StepWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |end: Option<i64>| end.map(|step| step.to_string()).unwrap_or_default();
        write!(f, "{}..{}", end(self.first), end(self.last))
    }
}

impl StepWindow {
    /// This window by a process's own count: the shared count is `offset` more.
    pub(crate) fn before(self, offset: i64) -> Self {
        let end = |end: Option<i64>| end.map(|step| step.saturating_sub(offset));
        Self { first: end(self.first), last: end(self.last) }
    }

    /// A condition on the column `step`.
    pub(crate) fn condition(self) -> String {
        match (self.first, self.last) {
            (Some(first), Some(last)) => format!("step BETWEEN {first} AND {last}"),
            (Some(first), None) => format!("step >= {first}"),
            (None, Some(last)) => format!("step <= {last}"),
            (None, None) => "true".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_as_people_write_them() {
        for (text, condition) in [
            ("10..50", "step BETWEEN 10 AND 50"),
            ("7", "step BETWEEN 7 AND 7"),
            ("100..", "step >= 100"),
            ("..99", "step <= 99"),
        ] {
            assert_eq!(text.parse::<StepWindow>().unwrap().condition(), condition);
        }
        for text in ["", "..", "a..b", "-1..4", "5..4", "1..2..3", "1.5", "1...2"] {
            assert!(text.parse::<StepWindow>().is_err(), "{text}");
        }
    }
}
