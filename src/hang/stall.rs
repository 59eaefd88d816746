//! The operation that kept a process group from going on, from the facts.

use std::collections::BTreeSet;

use probe_common::collectives::has_equal_tensors;

use super::facts::{CollectiveCompletion, FactSource, HangFacts, IssuedCollective, ProcessGroup};

/// Why a group does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StallReason {
    /// Ranks do different things as the same operation.
    Different,
    /// Some ranks have not entered the operation.
    NotEntered,
    /// All ranks that are known have entered the operation.
    NotFinished,
}

/// The oldest operation of a group that stops it.
#[derive(Debug)]
pub(crate) struct RecordedStall<'a> {
    pub why: StallReason,
    pub group: &'a str,
    pub description: Option<&'a str>,
    /// The operation of the rank that issued it first.
    pub operation: &'a IssuedCollective,
    pub entered: Vec<i32>,
    pub missing: Vec<i32>,
    /// Ranks of the group without a dump or rows.
    pub unknown: Vec<i32>,
    /// Ranks that may have entered the operation: their dumps were read in part.
    pub perhaps: Vec<i32>,
    /// Whether it is known which ranks the group has.
    pub listed: bool,
    pub source: FactSource,
    /// The operations and their ranks, where ranks are in different ones.
    pub kinds: Vec<(String, Vec<i32>)>,
}

impl<'a> RecordedStall<'a> {
    /// The oldest operation that some rank waits in and another has not entered; else the oldest that is not finished.
    pub(super) fn of(name: &'a str, group: &'a ProcessGroup, facts: &HangFacts) -> Option<Self> {
        let (known, unknown): (Vec<i32>, Vec<i32>) =
            group.ranks.iter().partition(|rank| facts.ranks.contains_key(rank));
        let unfinished =
            || group.collectives.iter().filter(|pending| pending.completion != CollectiveCompletion::Finished);
        let numbers: BTreeSet<i64> = unfinished().map(|pending| pending.seq).collect();
        // A dump without any operation of the group is of a rank that entered none that the recorder still has.
        let behind = |seq: i64| move |rank: &&i32| group.last.get(rank).is_none_or(|last| *last < seq);
        let is_whole = |rank: &&i32| !facts.partial.contains(rank);
        let stopped = numbers.iter().find(|seq| known.iter().filter(is_whole).any(|rank| behind(**seq)(&rank)));
        let seq = *stopped.or(numbers.first())?;
        let at_it = || group.collectives.iter().filter(move |pending| pending.seq == seq);
        let operation = unfinished().filter(|pending| pending.seq == seq).min_by_key(|pending| pending.issued)?;
        let (later, entered): (Vec<i32>, Vec<i32>) = known.iter().partition(|rank| behind(seq)(rank));
        let (missing, perhaps): (Vec<i32>, Vec<i32>) = later.iter().partition(is_whole);
        let kinds = different(at_it());
        let why = match (kinds.is_empty(), missing.is_empty()) {
            (false, _) => StallReason::Different,
            (true, false) => StallReason::NotEntered,
            (true, true) => StallReason::NotFinished,
        };
        // What all have entered and whose end is not seen may well have finished.
        if why == StallReason::NotFinished
            && at_it().all(|pending| pending.completion != CollectiveCompletion::Unfinished)
        {
            return None;
        }
        let description = group.description.as_deref();
        Some(Self {
            why,
            group: name,
            description,
            operation,
            entered,
            missing,
            unknown,
            perhaps,
            listed: group.listed,
            source: facts.source,
            kinds,
        })
    }

    /// Name and description of the group: "72 (EXPERT_MODEL_PARALLEL_GROUP)".
    pub(crate) fn group(&self) -> String {
        match self.description {
            Some(description) if description != self.group => format!("{} ({description})", self.group),
            _ => self.group.to_owned(),
        }
    }
}

/// The operations of ranks under the same number, with their ranks; empty if all operations are the same.
fn different<'a>(pending: impl Iterator<Item = &'a IssuedCollective>) -> Vec<(String, Vec<i32>)> {
    let mut kinds: Vec<(&IssuedCollective, Vec<i32>)> = Vec::new();
    for one in pending {
        let same = |other: &IssuedCollective| {
            other.operation_type == one.operation_type
                && ((other.bytes, &other.element_type) == (one.bytes, &one.element_type)
                    || !has_equal_tensors(&one.operation_type))
        };
        match kinds.iter_mut().find(|(kind, _)| same(kind)) {
            Some((_, ranks)) => ranks.push(one.rank),
            None => kinds.push((one, vec![one.rank])),
        }
    }
    if kinds.len() < 2 {
        return Vec::new();
    }
    let named = |(kind, mut ranks): (&IssuedCollective, Vec<i32>)| {
        ranks.sort_unstable();
        ranks.dedup();
        (format!("{} ({})", kind.operation_type, kind.tensors), ranks)
    };
    let mut kinds: Vec<_> = kinds.into_iter().map(named).collect();
    kinds.sort_by(|(_, one), (_, other)| one.cmp(other));
    kinds
}
