use super::judge;
use crate::hang::facts::{HangFacts, IssuedCollective, ProcessGroup};
use crate::hang::stall::StallReason;

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
        vec![("1", group(3, &[(0, 9), (1, 8), (2, 8)], later)), ("2", group(3, &[(0, 5), (1, 5), (2, 4)], waiting))],
    );
    let verdict = judge(&facts);
    let shown: Vec<_> =
        verdict.stalls.iter().map(|stall| (stall.group, stall.operation.seq, &stall.missing[..])).collect();
    assert_eq!(shown, [("2", 5, &[2][..]), ("1", 9, &[1, 2][..])]);
    assert_eq!(verdict.sentence, "rank 2 has not entered all_to_all (number 5 of group 2, Byte [8]); ranks 0, 1 have");
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
    let groups: Vec<&str> = verdict.stalls.iter().map(|stall| stall.group).collect();
    assert_eq!(groups, ["row", "column", "all"]);
}

#[test]
fn a_rank_whose_dump_has_nothing_of_the_group_is_missing_and_one_without_a_dump_is_not_known() {
    let facts = facts(2, vec![("0", group(3, &[(0, 7)], vec![pending(0, 7, "barrier", 1)]))]);
    let verdict = judge(&facts);
    assert_eq!((&verdict.stalls[0].missing[..], &verdict.stalls[0].unknown[..]), (&[1][..], &[2][..]));
    assert!(verdict.sentence.ends_with("rank 0 has; of rank 2 there is no dump"), "{}", verdict.sentence);
}

#[test]
fn a_rank_of_whose_dump_only_a_part_was_read_is_not_accused() {
    let waiting = || vec![pending(0, 7, "barrier", 1)];
    let mut facts = facts(3, vec![("0", group(3, &[(0, 7), (1, 6), (2, 6)], waiting()))]);
    facts.partial.insert(2);
    let verdict = judge(&facts);
    assert_eq!((&verdict.stalls[0].missing[..], &verdict.stalls[0].perhaps[..]), (&[1][..], &[2][..]));
    assert!(
        verdict.sentence.ends_with("rank 0 has; of rank 2 there is only a part of the dump"),
        "{}",
        verdict.sentence
    );
    assert!(verdict.remarks[0].starts_with("the dump of rank 2 was read only in part"), "{:?}", verdict.remarks);
    facts.partial.insert(1);
    let verdict = judge(&facts);
    assert_eq!(verdict.stalls[0].why, StallReason::NotFinished);
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
    assert_eq!(verdict.stalls[0].why, StallReason::Different);
    assert!(
        verdict.sentence.ends_with("rank 0 in all_reduce (Byte [8]), rank 1 in broadcast (Byte [8])"),
        "{}",
        verdict.sentence
    );
    assert_eq!(judge(&facts_of([("all_reduce", 8), ("all_reduce", 4)])).stalls[0].why, StallReason::Different);
    assert_eq!(judge(&facts_of([("all_to_all", 8), ("all_to_all", 4)])).stalls[0].why, StallReason::NotFinished);
}

#[test]
fn without_anything_pending_nothing_is_accused() {
    let facts = facts(2, vec![("0", group(2, &[(0, 3), (1, 2)], Vec::new()))]);
    let verdict = judge(&facts);
    assert!(verdict.stalls.is_empty() && verdict.sentence.starts_with("no rank waited"), "{}", verdict.sentence);
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
