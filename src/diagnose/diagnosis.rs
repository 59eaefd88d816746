//! What a diagnosis says.

use super::finding::Finding;
use super::recording::Recording;
use super::reference::Against;
use super::replay::FITS;
use super::request::Request;
use super::steps::{Steps, Ticks};
use super::waterfall::Leaf;

/// A rule that could not say anything, why, and what would record what it needs.
pub(crate) struct Undecided {
    pub(crate) rule: String,
    pub(crate) why: String,
    pub(crate) how: String,
}

pub(crate) struct Diagnosis {
    pub(crate) steps: Steps,
    pub(crate) findings: Vec<Finding>,
    pub(crate) waterfall: Vec<Leaf>,
    /// Rules that were silent, and why.
    pub(crate) ruled_out: Vec<(String, String)>,
    pub(crate) not_decided: Vec<Undecided>,
    /// Where a reference was named.
    pub(crate) against: Option<Against>,
    /// What a live run was asked for; None where nothing was to be asked.
    pub(crate) asked: Option<Vec<Request>>,
    /// What recording costs, where it is known.
    pub(crate) recording: Option<Recording>,
    /// The replay's.
    pub(crate) error: f64,
}

impl Diagnosis {
    pub(crate) fn fits(&self) -> bool {
        self.error.abs() <= FITS
    }

    /// The time of all steps: what the waterfall sums to.
    pub(super) fn total(&self) -> Ticks {
        self.waterfall.iter().map(|leaf| leaf.typical + leaf.excess).sum()
    }

    /// The finding that is worth a verdict: the first of the worst.
    pub(crate) fn verdict(&self) -> Option<&Finding> {
        let worth = self.findings.iter().filter(|of| of.is_warning());
        worth.rev().max_by_key(|of| of.severity)
    }
}
