//! The result of a diagnosis.

use super::finding::Finding;
use super::recording::RecordingCost;
use super::reference::ReferenceComparison;
use super::replay::FITS;
use super::request::EvidenceRequest;
use super::steps::{Steps, Ticks};
use super::waterfall::WaterfallRow;

/// A rule that could not decide, the reason, and how to record the data that it needs.
pub(crate) struct UndecidedRule {
    pub(crate) rule: String,
    pub(crate) why: String,
    pub(crate) how: String,
}

pub(crate) struct Diagnosis {
    pub(crate) steps: Steps,
    pub(crate) findings: Vec<Finding>,
    pub(crate) waterfall: Vec<WaterfallRow>,
    /// Rules without a finding, and the reasons.
    pub(crate) ruled_out: Vec<(String, String)>,
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

    /// The time of all steps, to which the waterfall sums.
    pub(super) fn total(&self) -> Ticks {
        self.waterfall.iter().map(|row| row.typical + row.excess).sum()
    }

    /// The finding for the verdict: the first of the most severe warnings. A run that has stopped comes before one that is slow.
    pub(crate) fn verdict(&self) -> Option<&Finding> {
        let worth = self.findings.iter().filter(|finding| finding.is_warning());
        worth.rev().max_by_key(|finding| (finding.severity, finding.family == "crash"))
    }
}
