//! A part of a step that is suspected: forward, data, comm.

use std::collections::BTreeSet;

use super::super::diagnosis::Diagnosis;
use super::super::finding::show;
use super::super::statistics::ratio_interval;
use super::super::steps::{COMM, PARTS, Ticks, seconds};
use super::candidate::{CauseVerdict, SuspectCandidate, first_finding, normalized_name, sentence, unnamed, without};
use crate::block_bootstrap::BootstrapDraws;

/// Other words for parts, and the names of the parts.
const WORDS: [(&str, &str); 8] = [
    ("communication", "comm"),
    ("network", "comm"),
    ("nccl", "comm"),
    ("backward pass", "backward"),
    ("forward pass", "forward"),
    ("autograd", "backward"),
    ("data time", "data"),
    ("optimizer step", "optimizer"),
];

pub(super) fn judge(done: &Diagnosis, name: &str, known: &mut BTreeSet<String>) -> Option<SuspectCandidate> {
    let parts = &PARTS[..PARTS.len() - 1];
    known.extend(parts.iter().chain(WORDS.iter().map(|(word, _)| word)).map(|word| (*word).to_owned()));
    let asked = normalized_name(name);
    let meant = WORDS.iter().find(|(word, _)| normalized_name(word) == asked).map_or(asked.as_str(), |(_, part)| *part);
    let part = parts.iter().position(|part| *part == meant)?;
    Some(of(done, part))
}

/// The answer about a part of the step.
pub(super) fn of(done: &Diagnosis, part: usize) -> SuspectCandidate {
    let steps = &done.steps;
    let of_all = |step: usize, of: &dyn Fn(usize, usize) -> Ticks| {
        (0..steps.processes.len()).map(|process| of(process, step)).sum::<Ticks>() as f64
    };
    let each = |of: &dyn Fn(usize, usize) -> Ticks| (0..steps.count()).map(|step| of_all(step, of)).collect::<Vec<_>>();
    let took = each(&|process, step| steps.parts[process][step][part]);
    let whole = each(&|process, step| steps.duration(process, step));
    let (all, total) = (took.iter().sum::<f64>(), whole.iter().sum::<f64>());
    let percent = if total > 0.0 { all / total * 100.0 } else { 0.0 };
    let (low, high) = ratio_interval(&BootstrapDraws::new(steps.count(), 8), &took, &whole).unwrap_or((0.0, 0.0));
    let share = (percent, low * 100.0, high * 100.0);
    let ms = seconds(all as Ticks) * 1000.0 / (steps.count() * steps.processes.len()).max(1) as f64;
    let mut why = vec![format!(
        "{} takes {} ms of a step, {:.0} % [{:.0}, {:.0}]",
        PARTS[part],
        show(ms),
        share.0,
        share.1,
        share.2
    )];
    let most: Vec<Ticks> = (0..steps.count())
        .map(|step| (0..steps.processes.len()).map(|at| steps.parts[at][step][part]).max().unwrap_or(0))
        .collect();
    let at_most = without(done, &[(part, most)]);
    let found = first_finding(done, |of| of.reductions.iter().any(|reduction| reduction.part == part));
    let (answer, finding) = match found {
        Some((number, cause)) => {
            why.push(sentence(number, cause));
            (CauseVerdict::Yes, Some(number))
        }
        None => {
            let (answer, reason) = unnamed(done, at_most);
            why.push(reason);
            if part == COMM && answer == CauseVerdict::No {
                let is_alike = done.ruled_out.iter().any(|of| of.rule == "rank-slow");
                let alike = if is_alike { ", and no rank comes late" } else { "" };
                why.push(format!("ranks have to exchange gradients: up to half of a step is usual{alike}"));
            }
            (answer, None)
        }
    };
    SuspectCandidate {
        share: Some(share),
        at_most: Some(at_most),
        finding,
        ..SuspectCandidate::of("part", PARTS[part], answer, why)
    }
}
