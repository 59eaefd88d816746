//! The result of a diagnosis.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::recording::RecordingCost;
use super::reference::ReferenceComparison;
use super::replay::FITS;
use super::request::EvidenceRequest;
use super::ruled_out::RuledOut;
use super::steps::{DiagnosedSteps, Ticks};
use super::waterfall::{WaterfallRow, durations};

/// A rule that could not decide, the reason, and how to record the data that it needs.
pub(crate) struct UndecidedRule {
    pub(crate) rule: String,
    pub(crate) why: String,
    pub(crate) how: String,
}

pub(crate) struct Diagnosis {
    pub(crate) steps: DiagnosedSteps,
    pub(crate) findings: Vec<Finding>,
    pub(crate) waterfall: Vec<WaterfallRow>,
    pub(crate) ruled_out: Vec<RuledOut>,
    pub(crate) not_decided: Vec<UndecidedRule>,
    /// The comparison with a reference, where one was named.
    pub(crate) against: Option<ReferenceComparison>,
    /// Requests for more evidence from a live run; None without `--ask`.
    pub(crate) asked: Option<Vec<EvidenceRequest>>,
    /// The cost of recording, where it is known.
    pub(crate) recording: Option<RecordingCost>,
    /// The error of the replay, as a share of the observed time.
    pub(crate) error: f64,
}

impl Diagnosis {
    pub(crate) fn fits(&self) -> bool {
        self.error.abs() <= FITS
    }

    /// The recorded time of all steps, to which the rows of the waterfall must sum.
    pub(super) fn total(&self) -> Ticks {
        durations(&self.steps).iter().sum()
    }

    /// Whether the rule has a finding. It may have others that were ruled out (another rank), and a line that is not decided.
    pub(super) fn has_finding(&self, rule: &str) -> bool {
        self.findings.iter().any(|finding| finding.rule == rule)
    }

    /// The rules without a finding that were ruled out.
    pub(super) fn rules_ruled_out(&self) -> BTreeSet<&str> {
        self.ruled_out.iter().map(|of| of.rule.as_str()).filter(|rule| !self.has_finding(rule)).collect()
    }

    /// The finding for the verdict: the first of the most severe warnings. A run that has stopped comes before one that is slow.
    pub(crate) fn verdict(&self) -> Option<&Finding> {
        let worth = self.findings.iter().filter(|finding| finding.is_warning());
        worth.rev().max_by_key(|finding| (finding.severity, finding.family == "crash"))
    }
}
