//! What a live run was asked for beside what it recorded by itself.

use serde_json::{Value, json};

/// What a run was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Stacks,
    Modules,
    Operators,
}

/// What was asked for, and what that took.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(super) what: What,
    /// The row of the waterfall that has no name.
    pub(super) row: Unnamed,
    pub(super) seconds: f64,
    /// What it cost, in words; why there is no answer, where there is none.
    pub(super) cost: std::result::Result<String, String>,
}

/// A row of the waterfall that has no name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unnamed {
    pub(super) part: &'static str,
    /// Percent of a step.
    pub(super) percent: f64,
    /// The finding that claims it, if only its line is not known.
    pub(super) finding: Option<usize>,
}

impl What {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Stacks => "stacks",
            Self::Modules => "modules",
            Self::Operators => "operators",
        }
    }
}

impl Request {
    pub(super) fn json(&self) -> Value {
        json!({
            "what": self.what.as_str(), "part": self.row.part, "percent": self.row.percent, "seconds": self.seconds,
            "finding": self.row.finding.map(|place| place + 1),
            "cost": self.cost.as_ref().ok(), "problem": self.cost.as_ref().err(),
        })
    }
}
