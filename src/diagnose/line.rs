//! The line of a program in which time is spent, as samples of its stack show it.

use serde_json::{Value, json};

/// The line that has most of the samples of a part of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SampledLine {
    pub(super) location: CodeLocation,
    /// Whether the line itself has most samples, and not only its function.
    pub(super) is_line: bool,
    /// The innermost function, where most samples of the line are in a library.
    pub(super) library: Option<String>,
    /// Samples of the part.
    pub(super) samples: usize,
    /// The share of those samples that the line has.
    pub(super) share: f64,
}

/// A line of the user's code; of a library, where nothing of the user is on the stack.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CodeLocation {
    pub(super) function: String,
    pub(super) file: String,
    pub(super) line: i64,
}

impl SampledLine {
    /// FILE:LINE.
    pub(super) fn line(&self) -> String {
        format!("{}:{}", self.location.file, self.location.line)
    }

    /// The clause that is added to the sentence of a finding.
    pub(super) fn text(&self) -> String {
        let library = self.library.as_ref().map(|function| format!(", mostly within {function}")).unwrap_or_default();
        let (percent, line, function) = (self.share * 100.0, self.line(), &self.location.function);
        let location =
            if self.is_line { format!("at {line} in {function}") } else { format!("in {function}, as at {line}") };
        format!("; {percent:.0} % of that time is {location}{library} (sampled)")
    }

    pub(super) fn json(&self) -> Value {
        json!({ "function": self.location.function, "file": self.location.file, "line": self.location.line,
                "library_function": self.library, "samples": self.samples, "share": self.share })
    }
}
