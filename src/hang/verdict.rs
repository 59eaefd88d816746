//! The verdict on facts: which ranks have not entered which collective of which process group.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use probe_common::collectives::has_equal_tensors;
use probe_common::wait_cycle;
use probe_inspect::stacks::fold::{Owner, names};

use super::facts::{Completion, FactSource, HangFacts, IssuedCollective, ProcessGroup};

/// Ranks of a deadlock of which the sentence says where they wait.
const MAX_PHRASES: usize = 4;

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

/// The verdict on a run.
#[derive(Debug)]
pub(crate) struct Verdict<'a> {
    /// The worst first: the others may wait for it.
    pub stops: Vec<RecordedStall<'a>>,
    pub sentence: String,
    /// Remarks that make the sentence less certain.
    pub remarks: Vec<String>,
}

/// Judges facts.
pub(crate) fn judge(facts: &HangFacts) -> Verdict<'_> {
    let mut stops: Vec<RecordedStall<'_>> =
        facts.groups.iter().filter_map(|(name, group)| RecordedStall::of(name, group, facts)).collect();
    // A rank that is missing in one group is missing in all that it would have come to later: the oldest is the cause.
    stops.sort_by_key(|stop| (stop.why == StallReason::NotFinished, stop.operation.issued));
    let cycle = deadlock(facts, &stops);
    if let Some(cycle) = &cycle {
        stops.sort_by_key(|stop| !cycle.groups.contains(stop.group));
    }
    let sentence = match (cycle, stops.first()) {
        (Some(cycle), _) => cycle.sentence,
        (None, Some(stop)) => stop.sentence(),
        (None, None) => match (facts.source, facts.operations) {
            (FactSource::Dumps, 0) => {
                "the dumps contain no operations, so they do not show whether a rank was waiting".into()
            }
            (FactSource::Dumps, _) => "no rank waited in a collective when its dump was made".into(),
            (FactSource::Rows, 0) => "no collective was recorded, so it is not known whether a rank was waiting".into(),
            (FactSource::Rows, _) => "no rank waited in a collective when its recording ended".into(),
        },
    };
    Verdict { sentence, remarks: remarks(facts), stops }
}

/// Ranks that wait for each other.
struct Deadlock<'a> {
    groups: BTreeSet<&'a str>,
    sentence: String,
}

/// The ranks that wait for each other, each in the oldest operation that it had not finished.
fn deadlock<'a>(facts: &'a HangFacts, stops: &[RecordedStall<'a>]) -> Option<Deadlock<'a>> {
    let mut oldest = BTreeMap::<i32, (&str, &IssuedCollective)>::new();
    for (name, pending) in
        facts.groups.iter().flat_map(|(name, group)| group.collectives.iter().map(move |one| (name, one)))
    {
        if pending.completion == Completion::Finished {
            continue;
        }
        let known = oldest.entry(pending.rank).or_insert((name, pending));
        if pending.issued < known.1.issued {
            *known = (name, pending);
        }
    }
    let stop_of = |rank: &i32| {
        let (group, pending) = oldest.get(rank)?;
        stops.iter().find(|stop| stop.group == *group && stop.operation.seq == pending.seq)
    };
    let waits = oldest.keys().filter_map(|rank| Some((*rank, stop_of(rank)?.missing.iter().copied().collect())));
    let cycle = wait_cycle::shortest(&waits.collect())?;
    let others = cycle.iter().cycle().skip(1);
    let waiting = |(rank, other): (&i32, &i32)| {
        Some(format!("rank {rank} in {}, which rank {other} has not entered", stop_of(rank)?.called()))
    };
    let phrases: Vec<String> = cycle.iter().zip(others).take(MAX_PHRASES).filter_map(waiting).collect();
    Some(Deadlock {
        groups: cycle.iter().filter_map(|rank| Some(stop_of(rank)?.group)).collect(),
        sentence: format!(
            "{} waited for each other, as ranks do that use groups in different orders: {}",
            rank_names(&cycle),
            phrases.join("; ")
        ),
    })
}

fn remarks(facts: &HangFacts) -> Vec<String> {
    let mut remarks = Vec::new();
    let twice: Vec<Owner> =
        facts.ranks.iter().filter(|(_, dumps)| **dumps > 1).map(|(rank, _)| Owner::Rank(*rank)).collect();
    if !twice.is_empty() {
        remarks.push(format!("{} left more than one dump, and they are taken together", names(&twice)));
    }
    if !facts.partial.is_empty() {
        let partial: Vec<i32> = facts.partial.iter().copied().collect();
        let (dump, was) = if partial.len() == 1 { ("dump", "was") } else { ("dumps", "were") };
        let ranks = rank_names(&partial);
        remarks.push(match facts.source {
            FactSource::Dumps => format!(
                "the {dump} of {ranks} {was} read only in part (python.captures says why), and what comes after that is not known"
            ),
            FactSource::Rows => format!("rows of {ranks} were lost (probe.drops says why), and what was in them is not known"),
        });
    }
    if facts.without_rank > 0 {
        remarks.push(format!("{} dumps are left out of this: the end of their names has no rank", facts.without_rank));
    }
    if facts.point_to_point > 0 {
        remarks.push(format!("{} sends and receives were not finished either", facts.point_to_point));
    }
    remarks
}

impl<'a> RecordedStall<'a> {
    /// The oldest operation that some rank waits in and another has not entered; else the oldest that is not finished.
    fn of(name: &'a str, group: &'a ProcessGroup, facts: &HangFacts) -> Option<Self> {
        let (known, unknown): (Vec<i32>, Vec<i32>) =
            group.ranks.iter().partition(|rank| facts.ranks.contains_key(rank));
        let unfinished = || group.collectives.iter().filter(|pending| pending.completion != Completion::Finished);
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
        if why == StallReason::NotFinished && at_it().all(|pending| pending.completion != Completion::Unfinished) {
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

    /// The operation: "all_reduce (number 5 of group 2, Byte [8])".
    fn called(&self) -> String {
        let IssuedCollective { operation_type, seq, tensors, .. } = self.operation;
        let shape = if tensors.is_empty() { String::new() } else { format!(", {tensors}") };
        format!("{operation_type} (number {seq} of group {}{shape})", self.group())
    }

    fn sentence(&self) -> String {
        let (missing, entered) = (rank_names(&self.missing), rank_names(&self.entered));
        let has = |ranks: &[i32]| if ranks.len() == 1 { "has" } else { "have" };
        let called = self.called();
        let mut unknown = match &self.unknown[..] {
            [] => String::new(),
            some if self.source == FactSource::Dumps => format!("; of {} there is no dump", rank_names(some)),
            some => format!("; of {} nothing is recorded", rank_names(some)),
        };
        if !self.perhaps.is_empty() {
            let _ = match self.source {
                FactSource::Dumps => {
                    write!(unknown, "; of {} there is only a part of the dump", rank_names(&self.perhaps))
                }
                FactSource::Rows => write!(unknown, "; of {} rows were lost", rank_names(&self.perhaps)),
            };
        }
        match self.why {
            StallReason::Different => {
                let each: Vec<String> =
                    self.kinds.iter().map(|(what, ranks)| format!("{} in {what}", rank_names(ranks))).collect();
                format!(
                    "ranks are in different operations as number {} of group {}: {}{unknown}",
                    self.operation.seq,
                    self.group(),
                    each.join(", ")
                )
            }
            StallReason::NotEntered => format!(
                "{missing} {} not entered {called}; {entered} {}{unknown}",
                has(&self.missing),
                has(&self.entered)
            ),
            StallReason::NotFinished if !unknown.is_empty() => {
                format!(
                    "{called} was entered by {entered} and had not finished{unknown}, and any of them may be missing"
                )
            }
            StallReason::NotFinished if !self.listed => {
                let unlisted = match self.source {
                    FactSource::Dumps => "no dump says which ranks the group has",
                    FactSource::Rows => "not all ranks of the group were recorded",
                };
                format!("{called} was entered by {entered} and had not finished; {unlisted}, so another may be missing")
            }
            StallReason::NotFinished => format!(
                "{called} was entered by {entered}, all ranks of the group, and had not finished: a link, a device or a peer \
                 did not answer"
            ),
        }
    }
}

fn rank_names(ranks: &[i32]) -> String {
    names(&ranks.iter().map(|rank| Owner::Rank(*rank)).collect::<Vec<_>>())
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

#[cfg(test)]
mod tests {
    use super::super::facts::{HangFacts, IssuedCollective, ProcessGroup};
    use super::{StallReason, judge};

    fn pending(rank: i32, seq: i64, kind: &str, bytes: i64) -> IssuedCollective {
        IssuedCollective {
            rank,
            seq,
            operation_type: kind.into(),
            bytes: Some(bytes),
            tensors: format!("Byte [{bytes}]"),
            issued: 1000 * seq + i64::from(rank),
            ..IssuedCollective::default()
        }
    }

    fn facts(ranks: i32, groups: Vec<(&str, ProcessGroup)>) -> HangFacts {
        let groups = groups.into_iter().map(|(name, group)| (name.to_owned(), group)).collect();
        HangFacts { ranks: (0..ranks).map(|rank| (rank, 1)).collect(), groups, operations: 1, ..HangFacts::default() }
    }

    fn group(members: i32, last: &[(i32, i64)], pending: Vec<IssuedCollective>) -> ProcessGroup {
        ProcessGroup {
            ranks: (0..members).collect(),
            listed: true,
            last: last.iter().copied().collect(),
            collectives: pending,
            ..ProcessGroup::default()
        }
    }

    #[test]
    fn the_oldest_operation_with_a_rank_that_has_not_entered_it_is_named() {
        // Number 4 is waited in by all; 5 is where rank 2 is missing.
        let waiting = vec![
            pending(0, 4, "all_to_all", 8),
            pending(1, 4, "all_to_all", 9),
            pending(2, 4, "all_to_all", 8),
            pending(0, 5, "all_to_all", 8),
            pending(1, 5, "all_to_all", 8),
        ];
        let later = vec![pending(0, 9, "all_reduce", 4)];
        let facts = facts(
            3,
            vec![
                ("1", group(3, &[(0, 9), (1, 8), (2, 8)], later)),
                ("2", group(3, &[(0, 5), (1, 5), (2, 4)], waiting)),
            ],
        );
        let verdict = judge(&facts);
        let shown: Vec<_> =
            verdict.stops.iter().map(|stop| (stop.group, stop.operation.seq, &stop.missing[..])).collect();
        assert_eq!(shown, [("2", 5, &[2][..]), ("1", 9, &[1, 2][..])]);
        assert_eq!(
            verdict.sentence,
            "rank 2 has not entered all_to_all (number 5 of group 2, Byte [8]); ranks 0, 1 have"
        );
    }

    #[test]
    fn ranks_that_wait_for_each_other_on_two_groups_are_a_deadlock() {
        let row = group(2, &[(0, 5), (1, 4)], vec![pending(0, 5, "all_reduce", 4)]);
        let column = group(2, &[(0, 7), (1, 8)], vec![pending(1, 8, "broadcast", 8)]);
        let all = group(3, &[(0, 1), (1, 1), (2, 2)], vec![pending(2, 2, "barrier", 1)]);
        let facts = facts(3, vec![("all", all), ("column", column), ("row", row)]);
        let verdict = judge(&facts);
        assert_eq!(
            verdict.sentence,
            "ranks 0, 1 waited for each other, as ranks do that use groups in different orders: rank 0 in all_reduce (number 5 of group row, Byte [4]), which rank 1 has not entered; rank 1 in broadcast (number 8 of group column, Byte [8]), which rank 0 has not entered"
        );
        let groups: Vec<&str> = verdict.stops.iter().map(|stop| stop.group).collect();
        assert_eq!(groups, ["row", "column", "all"]);
    }

    #[test]
    fn a_rank_whose_dump_has_nothing_of_the_group_is_missing_and_one_without_a_dump_is_not_known() {
        let facts = facts(2, vec![("0", group(3, &[(0, 7)], vec![pending(0, 7, "barrier", 1)]))]);
        let verdict = judge(&facts);
        assert_eq!((&verdict.stops[0].missing[..], &verdict.stops[0].unknown[..]), (&[1][..], &[2][..]));
        assert!(verdict.sentence.ends_with("rank 0 has; of rank 2 there is no dump"), "{}", verdict.sentence);
    }

    #[test]
    fn a_rank_of_whose_dump_only_a_part_was_read_is_not_accused() {
        let waiting = || vec![pending(0, 7, "barrier", 1)];
        let mut facts = facts(3, vec![("0", group(3, &[(0, 7), (1, 6), (2, 6)], waiting()))]);
        facts.partial.insert(2);
        let verdict = judge(&facts);
        assert_eq!((&verdict.stops[0].missing[..], &verdict.stops[0].perhaps[..]), (&[1][..], &[2][..]));
        assert!(
            verdict.sentence.ends_with("rank 0 has; of rank 2 there is only a part of the dump"),
            "{}",
            verdict.sentence
        );
        assert!(verdict.remarks[0].starts_with("the dump of rank 2 was read only in part"), "{:?}", verdict.remarks);
        facts.partial.insert(1);
        let verdict = judge(&facts);
        assert_eq!(verdict.stops[0].why, StallReason::NotFinished);
        assert!(verdict.sentence.ends_with("and any of them may be missing"), "{}", verdict.sentence);
    }

    #[test]
    fn different_operations_are_told_apart_and_sizes_only_where_they_must_be_equal() {
        let facts_of = |kinds: [(&str, i64); 2]| {
            let waiting = (0..).zip(kinds).map(|(rank, (kind, bytes))| pending(rank, 3, kind, bytes)).collect();
            facts(2, vec![("0", group(2, &[(0, 3), (1, 3)], waiting))])
        };
        let differ = facts_of([("all_reduce", 8), ("broadcast", 8)]);
        let verdict = judge(&differ);
        assert_eq!(verdict.stops[0].why, StallReason::Different);
        assert!(
            verdict.sentence.ends_with("rank 0 in all_reduce (Byte [8]), rank 1 in broadcast (Byte [8])"),
            "{}",
            verdict.sentence
        );
        assert_eq!(judge(&facts_of([("all_reduce", 8), ("all_reduce", 4)])).stops[0].why, StallReason::Different);
        assert_eq!(judge(&facts_of([("all_to_all", 8), ("all_to_all", 4)])).stops[0].why, StallReason::NotFinished);
    }

    #[test]
    fn without_anything_pending_nothing_is_accused() {
        let facts = facts(2, vec![("0", group(2, &[(0, 3), (1, 2)], Vec::new()))]);
        let verdict = judge(&facts);
        assert!(verdict.stops.is_empty() && verdict.sentence.starts_with("no rank waited"), "{}", verdict.sentence);
        let empty = HangFacts { operations: 0, ..facts };
        assert!(judge(&empty).sentence.starts_with("the dumps contain no operations"));
    }

    #[test]
    fn where_no_dump_lists_the_ranks_of_a_group_another_rank_may_be_missing() {
        let entered = group(1, &[(0, 7)], vec![pending(0, 7, "all_reduce", 8)]);
        let facts = facts(1, vec![("0", ProcessGroup { listed: false, ..entered })]);
        let sentence = judge(&facts).sentence;
        assert!(sentence.ends_with("was entered by rank 0 and had not finished; no dump says which ranks the group has, so another may be missing"), "{sentence}");
    }
}
