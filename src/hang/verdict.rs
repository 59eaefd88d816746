//! The verdict on facts: which ranks have not entered which collective of which process group.

use std::collections::{BTreeMap, BTreeSet};

use probe_collector::hang_sentences::{self, MAX_PHRASES, Tense, cycle_wait};
use probe_common::wait_cycle;
use probe_inspect::stacks::fold::ProcessLabel;

use super::facts::{CollectiveCompletion, HangFacts, IssuedCollective};
use super::sentences;
use super::stall::{RecordedStall, StallReason};

#[cfg(test)]
mod tests;

/// The verdict on a run.
#[derive(Debug)]
pub(crate) struct HangVerdict<'a> {
    /// The worst first: the others may wait for it.
    pub stalls: Vec<RecordedStall<'a>>,
    pub sentence: String,
    /// Remarks that make the sentence less certain.
    pub remarks: Vec<String>,
}

/// Judges facts.
pub(crate) fn judge(facts: &HangFacts) -> HangVerdict<'_> {
    let mut stalls: Vec<RecordedStall<'_>> =
        facts.groups.iter().filter_map(|(name, group)| RecordedStall::of(name, group, facts)).collect();
    // A rank that is missing in one group is missing in all that it would have come to later: the oldest is the cause.
    stalls.sort_by_key(|stall| (stall.why == StallReason::NotFinished, stall.operation.issued));
    let cycle = deadlock(facts, &stalls);
    if let Some(cycle) = &cycle {
        stalls.sort_by_key(|stall| !cycle.groups.contains(stall.group));
    }
    let sentence = match (cycle, stalls.first()) {
        (Some(cycle), _) => cycle.sentence,
        (None, Some(stall)) => sentences::stall(stall),
        (None, None) => sentences::no_stall(facts).into(),
    };
    HangVerdict { sentence, remarks: sentences::remarks(facts), stalls }
}

/// Ranks that wait for each other.
struct Deadlock<'a> {
    groups: BTreeSet<&'a str>,
    sentence: String,
}

/// The ranks that wait for each other, each in the oldest operation that it had not finished.
fn deadlock<'a>(facts: &'a HangFacts, stalls: &[RecordedStall<'a>]) -> Option<Deadlock<'a>> {
    let mut oldest = BTreeMap::<i32, (&str, &IssuedCollective)>::new();
    for (name, pending) in
        facts.groups.iter().flat_map(|(name, group)| group.collectives.iter().map(move |one| (name, one)))
    {
        if pending.completion == CollectiveCompletion::Finished {
            continue;
        }
        let known = oldest.entry(pending.rank).or_insert((name, pending));
        if pending.issued < known.1.issued {
            *known = (name, pending);
        }
    }
    let stall_of = |rank: &i32| {
        let (group, pending) = oldest.get(rank)?;
        stalls.iter().find(|stall| stall.group == *group && stall.operation.seq == pending.seq)
    };
    let waits = oldest.keys().filter_map(|rank| Some((*rank, stall_of(rank)?.missing.iter().copied().collect())));
    let cycle = wait_cycle::shortest(&waits.collect())?;
    let others = cycle.iter().cycle().skip(1);
    let waiting = |(rank, other): (&i32, &i32)| {
        let operation = sentences::called(stall_of(rank)?);
        Some(cycle_wait(Tense::Past, ProcessLabel::Rank(*rank), &operation, ProcessLabel::Rank(*other)))
    };
    let phrases: Vec<String> = cycle.iter().zip(others).take(MAX_PHRASES).filter_map(waiting).collect();
    Some(Deadlock {
        groups: cycle.iter().filter_map(|rank| Some(stall_of(rank)?.group)).collect(),
        sentence: hang_sentences::deadlock(Tense::Past, &sentences::owners(&cycle), &phrases),
    })
}
