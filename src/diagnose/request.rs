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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_request_are_fixed() {
        let of = |what, finding, cost| {
            let row = UnexplainedTime { part: "other", percent: 12.5, finding };
            EvidenceRequest { what, row, seconds: 4.0, cost }.json()
        };
        assert_eq!(
            of(EvidenceKind::Stacks, Some(0), Ok("little".into())),
            json!({ "what": "stacks", "part": "other", "percent": 12.5, "seconds": 4.0, "finding": 1, "cost": "little",
                    "problem": null })
        );
        assert_eq!(
            of(EvidenceKind::Operators, None, Err("gone".into())),
            json!({ "what": "operators", "part": "other", "percent": 12.5, "seconds": 4.0, "finding": null, "cost": null,
                    "problem": "gone" })
        );
    }
}
