//! The line of a program in which time is spent, as samples of its stack show it.

use serde_json::{Value, json};

/// Where most of the samples of a part are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(super) place: Place,
    /// Whether that line has most samples, and not only its function.
    pub(super) is_line: bool,
    /// Innermost function of a library, where most samples of the line are in one.
    pub(super) library: Option<String>,
    /// Samples of the part, and the share of them there.
    pub(super) samples: usize,
    pub(super) share: f64,
}

/// A line of the user's code; of a library, where nothing of the user is on the stack.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) function: String,
    pub(super) file: String,
    pub(super) line: i64,
}

impl Line {
    /// FILE:LINE.
    pub(super) fn line(&self) -> String {
        format!("{}:{}", self.place.file, self.place.line)
    }

    /// What is added to what a finding says.
    pub(super) fn text(&self) -> String {
        let library = self.library.as_ref().map(|function| format!(", mostly within {function}")).unwrap_or_default();
        let (percent, line, function) = (self.share * 100.0, self.line(), &self.place.function);
        let place =
            if self.is_line { format!("at {line} in {function}") } else { format!("in {function}, as at {line}") };
        format!("; {percent:.0} % of that time is {place}{library} (sampled)")
    }

    pub(super) fn json(&self) -> Value {
        json!({ "function": self.place.function, "file": self.place.file, "line": self.place.line,
                "library_function": self.library, "samples": self.samples, "share": self.share })
    }
}
