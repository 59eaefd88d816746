//! What is to be thought of one suspected cause (`--suspect NAME`): a rule, a part of a step, a rank, modules by name or
//! type, operations, the device, or recording itself. It is the cause, it is not, or that is not decided; and why.
//!
//! A large share is no cause here either. What nothing names is suspected wrongly if it could save less than a finding
//! does, or less than half of a step; else it is not decided.

mod module;
mod operation;
mod page;
mod part;
mod rank;
mod rules;
mod whole;

use std::collections::BTreeSet;

use super::Asked;
use super::diagnosis::Diagnosis;
use super::finding::{Finding, interval, show};
use super::ranking::{Range, together};
use super::replay::Reduction;
use super::rule;
use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_query::nearest;

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
    const fn as_str(self) -> &'static str {
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
    kind: &'static str,
    name: String,
    answer: Answer,
    /// Sentences.
    why: Vec<String>,
    /// What it takes of a step, in percent with 95 % confidence, where that is known.
    share: Option<(f64, f64, f64)>,
    /// What a step would take less without it, at most.
    at_most: Option<Range>,
    /// The finding that names it, by its place from 1.
    finding: Option<usize>,
}

impl Reason {
    fn of(kind: &'static str, name: &str, answer: Answer, why: Vec<String>) -> Self {
        Self { kind, name: name.to_owned(), answer, why, share: None, at_most: None, finding: None }
    }
}

/// What is said of a name.
pub(crate) struct Suspect<'a> {
    done: &'a Diagnosis,
    asked: String,
    reasons: Vec<Reason>,
}

/// Looks at everything that `name` may mean.
///
/// # Errors
/// It means nothing here; the queries'.
pub(crate) async fn suspect<'a>(
    client: &mut Client,
    done: &'a Diagnosis,
    asked: &Asked,
    name: &str,
) -> Result<Suspect<'a>> {
    let mut known = BTreeSet::new();
    let all = [rule::built_in()?, asked.own.clone()].concat();
    let mut reasons = rules::look(done, &all, name, &mut known);
    reasons.extend(part::look(done, name, &mut known));
    reasons.extend(rank::look(done, name));
    reasons.extend(operation::look(client, done, name, &mut known).await?);
    reasons.extend(module::look(client, done, name, &mut known).await?);
    reasons.extend(whole::look(client, done, name, &mut known).await?);
    if reasons.is_empty() {
        return Err(unknown(name, &known, done));
    }
    Ok(Suspect { done, asked: name.to_owned(), reasons })
}

fn unknown(name: &str, known: &BTreeSet<String>, done: &Diagnosis) -> Error {
    let meant = nearest(name, known.iter().map(String::as_str));
    let meant = meant.map(|near| format!("did you mean '{near}'? ")).unwrap_or_default();
    let modules = if known.iter().any(|name| name.starts_with("module ")) { "" } else { " (none is recorded)" };
    let ranks = done.steps.processes.iter().filter_map(|of| of.rank).max().map(|last| format!("rank 0..{last}, "));
    Error::usage(format!("nothing in this run is called '{name}'")).hint(format!(
        "{meant}It may be a rule (probe diagnose lists them), a part of a step ({}), {}a module or its type{modules}, an \
         operation (copy_, item, all_reduce), gpu, or recording",
        super::steps::PARTS[..8].join(", "),
        ranks.unwrap_or_default(),
    ))
}

/// Small letters and digits: BatchNorm2d, batch_norm2d and "batch norm 2d" are one name.
fn plain(name: &str) -> String {
    name.chars().filter(|letter| letter.is_ascii_alphanumeric()).map(|letter| letter.to_ascii_lowercase()).collect()
}

/// The answer where no finding names it, and a sentence that says why.
fn unnamed(done: &Diagnosis, at_most: Range) -> (Answer, String) {
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
fn named(done: &Diagnosis, is: impl Fn(&Finding) -> bool) -> Option<(usize, &Finding)> {
    done.findings.iter().enumerate().find(|(_, of)| is(of)).map(|(place, of)| (place + 1, of))
}

/// The sentence of a finding.
fn sentence(place: usize, of: &Finding) -> String {
    format!("finding {place} ({}): {}", of.rule, of.says)
}

/// What a step takes less without so many seconds a step in these parts, in every process.
fn without(done: &Diagnosis, parts: &[(usize, Vec<i64>)]) -> Range {
    let processes = 0..done.steps.processes.len();
    let of = |process: usize| parts.iter().map(move |(part, by)| Reduction { part: *part, process, by: by.clone() });
    let all: Vec<Reduction> = processes.flat_map(of).collect();
    together(&done.steps, &all.iter().collect::<Vec<_>>())
}
