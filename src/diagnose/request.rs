//! Requests to a live run for more evidence than it recorded by itself.

use serde_json::{Value, json};

/// The kind of evidence that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvidenceKind {
    Stacks,
    Modules,
    Operators,
}

/// A request for evidence, and its cost.
#[derive(Debug, Clone)]
pub(crate) struct EvidenceRequest {
    pub(super) what: EvidenceKind,
    /// The row of the waterfall that was to be explained.
    pub(super) row: UnexplainedTime,
    pub(super) seconds: f64,
    /// The cost in words, or why the evidence could not be recorded.
    pub(super) cost: std::result::Result<String, String>,
}

/// A row of the waterfall whose cause has no name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UnexplainedTime {
    pub(super) part: &'static str,
    /// Percent of a step.
    pub(super) percent: f64,
    /// The index of the finding that claims the row, if only its line is not known.
    pub(super) finding: Option<usize>,
}

impl EvidenceKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Stacks => "stacks",
            Self::Modules => "modules",
            Self::Operators => "operators",
        }
    }
}

impl EvidenceRequest {
    pub(super) fn json(&self) -> Value {
        json!({
            "what": self.what.as_str(), "part": self.row.part, "percent": self.row.percent, "seconds": self.seconds,
            "finding": self.row.finding.map(|index| index + 1),
            "cost": self.cost.as_ref().ok(), "problem": self.cost.as_ref().err(),
        })
    }
}
