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
    /// Where no single function has most of the samples: those that have them together with this one.
    pub(super) beside: Vec<Self>,
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

    /// Whether most samples are of one line or function.
    pub(super) const fn is_alone(&self) -> bool {
        self.beside.is_empty()
    }

    /// The clause that is added to the sentence of a finding.
    pub(super) fn text(&self) -> String {
        let mut text = format!("; {:.0} % of that time is {}", self.share * 100.0, self.place());
        for (index, other) in self.beside.iter().enumerate() {
            let and = if index + 1 == self.beside.len() { ", and" } else { "," };
            text += &format!("{and} {:.0} % {}", other.share * 100.0, other.place());
        }
        text + " (sampled)"
    }

    /// Where it is, in words.
    fn place(&self) -> String {
        let library = self.library.as_ref().map(|function| format!(", mostly within {function}")).unwrap_or_default();
        let (line, function) = (self.line(), &self.location.function);
        let place =
            if self.is_line { format!("at {line} in {function}") } else { format!("in {function}, as at {line}") };
        place + &library
    }

    pub(super) fn json(&self) -> Value {
        json!({ "function": self.location.function, "file": self.location.file, "line": self.location.line,
                "library_function": self.library, "samples": self.samples, "share": self.share,
                "beside": self.beside.iter().map(Self::json).collect::<Vec<_>>() })
    }
}
