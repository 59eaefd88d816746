//! Names of runs. A name may stand where a command, pid or address may, so it can be none of them.

use std::fmt;

use probe_proto::RESERVED_NAMES;

use crate::error::{Error, Result};

/// Longest name (bytes), so that a socket's path fits the kernel's 107.
const MAX_NAME_LENGTH: usize = 64;

/// A run's name, with its number where one is given: `gpt`, `gpt@2`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunName {
    /// The name that the user chose.
    pub base: String,
    /// The number among the runs with this name, from 1.
    pub number: Option<u32>,
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{}@{number}", self.base),
            None => f.write_str(&self.base),
        }
    }
}

impl RunName {
    /// Parses `NAME` or `NAME@NUMBER`; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((base, number)) = text.split_once('@') else {
            check_name(text)?;
            return Ok(Self { base: text.to_owned(), number: None });
        };
        check_name(base)?;
        // The number must be written as we write it: gpt@02 would be another directory.
        let parsed = number.parse().ok().filter(|n: &u32| *n > 0 && n.to_string() == number);
        match parsed {
            Some(number) => Ok(Self { base: base.to_owned(), number: Some(number) }),
            None => Err(Error::usage(format!("'{text}': '{number}' is not the number of a run"))
                .hint(format!("{base}@1 is the first run called {base}, {base} the newest"))),
        }
    }

    /// Parses the name of a run directory: `NAME@NUMBER`, with the number.
    pub fn numbered(text: &str) -> Option<Self> {
        Self::parse(text).ok().filter(|name| name.number.is_some())
    }
}

/// Checks that a user may give a run this name (without a number).
pub fn check_name(name: &str) -> Result<()> {
    let wrong = |what: &str| {
        Err(Error::usage(format!("a run cannot be called '{name}': {what}"))
            .hint("names are like gpt, gpt-small, exp_1.2"))
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() {
        wrong("a name has at least one letter")
    } else if name.len() > MAX_NAME_LENGTH {
        wrong(&format!("a name has at most {MAX_NAME_LENGTH} letters"))
    } else if let Some(c) = name.chars().find(|c| !allowed(*c)) {
        wrong(&format!("{c:?} is none of A-Z a-z 0-9 . _ -"))
    } else if name.starts_with(['.', '-']) {
        wrong("a name begins with a letter, a digit or _")
    } else if name.bytes().all(|b| b.is_ascii_digit()) {
        wrong("that is a process id")
    } else if RESERVED_NAMES.contains(&name) {
        wrong(&format!("probe {name} is a command"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn names_are_parsed_and_written_alike() {
        for name in ["gpt", "gpt@1", "exp_1.2-b", "1b@12", "_x", "a..b"] {
            assert_eq!(RunName::parse(name).unwrap().to_string(), name);
        }
        assert_eq!(RunName::numbered("gpt"), None);
        assert_eq!(RunName::numbered("gpt@3").unwrap().number, Some(3));
    }

    #[test]
    fn what_means_something_else_is_refused() {
        let long = "x".repeat(65);
        let wrong = [
            "", ".", "..", ".x", "-x", "a/b", "a b", "é", "a@b@1", "123", "a:1", "gpt@", "gpt@0", "gpt@02", "gpt@-1",
            &long,
        ];
        for name in wrong.into_iter().chain(RESERVED_NAMES.iter().copied()) {
            let error = RunName::parse(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{name}");
            assert!(error.hint_text().is_some(), "{name}");
        }
        assert!(check_name("query").unwrap_err().to_string().contains("is a command"));
    }
}
