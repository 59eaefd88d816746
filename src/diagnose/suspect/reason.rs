//! What is said of one thing that a suspicion may mean, and what all of them share.

use super::super::diagnosis::Diagnosis;
use super::super::finding::{Finding, interval, show};
use super::super::ranking::{Range, together};
use super::super::replay::Reduction;

/// A share from which on a suspicion that no rule has a reference for stays open.
const LARGE: f64 = 50.0;

/// Whether what is suspected is a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    No,
    NotDecided,
    Yes,
}

impl Answer {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::NotDecided => "not decided",
            Self::Yes => "yes",
        }
    }
}

/// What is said of one thing that the name may mean.
pub(super) struct Reason {
    /// rule, part, rank, module, operation, device, recording.
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) answer: Answer,
    /// Sentences.
    pub(super) why: Vec<String>,
    /// What it takes of a step, in percent with 95 % confidence, where that is known.
    pub(super) share: Option<(f64, f64, f64)>,
    /// What a step would take less without it, at most.
    pub(super) at_most: Option<Range>,
    /// The finding that names it, by its place from 1.
    pub(super) finding: Option<usize>,
}

impl Reason {
    pub(super) fn of(kind: &'static str, name: &str, answer: Answer, why: Vec<String>) -> Self {
        Self { kind, name: name.to_owned(), answer, why, share: None, at_most: None, finding: None }
    }
}

/// Small letters and digits: BatchNorm2d, batch_norm2d and "batch norm 2d" are one name.
pub(super) fn plain(name: &str) -> String {
    name.chars().filter(|letter| letter.is_ascii_alphanumeric()).map(|letter| letter.to_ascii_lowercase()).collect()
}

/// The answer where no finding names it, and a sentence that says why.
pub(super) fn unnamed(done: &Diagnosis, at_most: Range) -> (Answer, String) {
    let better = done.findings.iter().enumerate().find_map(|(place, of)| {
        let saving = of.saving.filter(|saving| saving.alone > at_most.percent)?;
        Some(format!("finding {} ({}) saves {:.0} %", place + 1, of.rule, saving.alone))
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
        Some(better) => (Answer::No, format!("{most}; {better}")),
        None if at_most.percent + done.error.abs() * 100.0 < LARGE => (Answer::No, most),
        None => {
            (Answer::NotDecided, format!("{most}, and no rule has a reference for it: a share is no cause by itself"))
        }
    }
}

/// The first finding of which this is so, and its place from 1.
pub(super) fn named(done: &Diagnosis, is: impl Fn(&Finding) -> bool) -> Option<(usize, &Finding)> {
    done.findings.iter().enumerate().find(|(_, of)| is(of)).map(|(place, of)| (place + 1, of))
}

/// The sentence of a finding.
pub(super) fn sentence(place: usize, of: &Finding) -> String {
    format!("finding {place} ({}): {}", of.rule, of.says)
}

/// What a step takes less without so many seconds a step in these parts, in every process.
pub(super) fn without(done: &Diagnosis, parts: &[(usize, Vec<i64>)]) -> Range {
    let processes = 0..done.steps.processes.len();
    let of = |process: usize| parts.iter().map(move |(part, by)| Reduction { part: *part, process, by: by.clone() });
    let all: Vec<Reduction> = processes.flat_map(of).collect();
    together(&done.steps, &all.iter().collect::<Vec<_>>())
}
