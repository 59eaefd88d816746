//! Rules without a finding, and how near they came to one.

use serde_json::{Value, json};

/// The number by which a rule decided that there is no finding, beside the level that it takes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RuleScore {
    /// What the number is: `saving` or `growth` in percent, `persistence`, or a column of the rule's rows.
    pub(crate) of: String,
    pub(crate) value: f64,
    /// The 95 % interval, where it is computed. Its lower end is what must reach the level.
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) level: f64,
}

/// A rule without a finding, and the reason.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RuledOut {
    pub(crate) rule: String,
    pub(crate) why: String,
    /// None where no number decided, as where the rule's query has no rows.
    pub(crate) score: Option<RuleScore>,
}

/// Why a rank has no finding, and the number that decided so.
pub(super) struct NoFinding {
    pub(super) why: String,
    pub(super) score: Option<RuleScore>,
}

impl<T: Into<String>> From<T> for NoFinding {
    fn from(why: T) -> Self {
        Self { why: why.into(), score: None }
    }
}

impl RuleScore {
    /// The share of its level that it reached.
    fn reached(&self) -> f64 {
        self.interval.map_or(self.value, |(low, _)| low) / self.level
    }

    /// Whether it is of the same number as another, and farther from its level.
    pub(super) fn is_farther(&self, other: &Self) -> bool {
        self.of == other.of && self.reached() < other.reached()
    }
}

impl RuledOut {
    pub(super) fn json(&self) -> Value {
        let score = self.score.as_ref().map(|of| {
            json!({ "of": of.of, "value": of.value, "low": of.interval.map(|of| of.0), "high": of.interval.map(|of| of.1),
                    "level": of.level })
        });
        json!({ "rule": self.rule, "why": self.why, "score": score })
    }
}
