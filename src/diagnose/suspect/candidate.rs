//! The answer for one candidate that a suspicion may mean, and the parts that all candidates share.

use super::super::diagnosis::Diagnosis;
use super::super::finding::{Finding, interval, show};
use super::super::ranking::{SavingRange, together};
use super::super::replay::TimeReduction;

/// Percent of a step from which on a suspicion stays open where no rule has a reference for it.
const LARGE_PERCENT: f64 = 50.0;

/// Whether a suspected candidate is a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CauseVerdict {
    No,
    NotDecided,
    Yes,
}

impl CauseVerdict {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::NotDecided => "not decided",
            Self::Yes => "yes",
        }
    }
}

/// The answer for one candidate that the name may mean.
pub(super) struct SuspectCandidate {
    /// The kind of candidate: rule, part, rank, module, operation, device or recording.
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) answer: CauseVerdict,
    /// The reasons, as sentences.
    pub(super) why: Vec<String>,
    /// The share of a step that the candidate takes, in percent with its 95 % interval, where that is known.
    pub(super) share: Option<(f64, f64, f64)>,
    /// The most time that a step would save without the candidate.
    pub(super) at_most: Option<SavingRange>,
    /// The number, from 1, of the finding that names the candidate.
    pub(super) finding: Option<usize>,
}

impl SuspectCandidate {
    pub(super) fn of(kind: &'static str, name: &str, answer: CauseVerdict, why: Vec<String>) -> Self {
        Self { kind, name: name.to_owned(), answer, why, share: None, at_most: None, finding: None }
    }
}

/// A name reduced to small letters and digits: BatchNorm2d, batch_norm2d and "batch norm 2d" are one name.
pub(super) fn normalized_name(name: &str) -> String {
    name.chars().filter(|letter| letter.is_ascii_alphanumeric()).map(|letter| letter.to_ascii_lowercase()).collect()
}

/// The answer where no finding names the candidate, and a sentence with the reason.
pub(super) fn unnamed(done: &Diagnosis, at_most: SavingRange) -> (CauseVerdict, String) {
    let better = done.findings.iter().enumerate().find_map(|(index, finding)| {
        let saving = finding.saving.filter(|saving| saving.alone > at_most.percent)?;
        Some(format!("finding {} ({}) saves {:.0} %", index + 1, finding.rule, saving.alone))
    });
    let rough = if done.fits() {
        String::new()
    } else {
        format!("; roughly, since the replay is off by {:.1} %", done.error * 100.0)
    };
    let most = format!(
        "without it a step would take at most {} ms less ({:.0} %{}{rough})",
        show(at_most.ms),
        at_most.percent,
        interval((at_most.low, at_most.high))
    );
    match better {
        Some(better) => (CauseVerdict::No, format!("{most}; {better}")),
        None if at_most.percent + done.error.abs() * 100.0 < LARGE_PERCENT => (CauseVerdict::No, most),
        None => (
            CauseVerdict::NotDecided,
            format!("{most}, and no rule has a reference for it: a share is no cause by itself"),
        ),
    }
}

/// The first finding for which `is` is true, and its number from 1.
pub(super) fn first_finding(done: &Diagnosis, is: impl Fn(&Finding) -> bool) -> Option<(usize, &Finding)> {
    done.findings.iter().enumerate().find(|(_, finding)| is(finding)).map(|(index, finding)| (index + 1, finding))
}

/// The sentence that names the finding of this number, counted from 1.
pub(super) fn sentence(number: usize, finding: &Finding) -> String {
    format!("finding {number} ({}): {}", finding.rule, finding.says)
}

/// The time that a step saves without so much time (ticks) in each step of these parts, in every process.
pub(super) fn without(done: &Diagnosis, parts: &[(usize, Vec<i64>)]) -> SavingRange {
    let processes = 0..done.steps.processes.len();
    let of =
        |process: usize| parts.iter().map(move |(part, by)| TimeReduction { part: *part, process, by: by.clone() });
    let all: Vec<TimeReduction> = processes.flat_map(of).collect();
    together(&done.steps, &all.iter().collect::<Vec<_>>())
}
