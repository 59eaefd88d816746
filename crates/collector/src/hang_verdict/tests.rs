use probe_proto::v1::{GroupState, PendingOperation, RankState, StackFrame};

use super::*;

const NOW: i64 = 100_000_000_000;

/// A rank that has issued so many operations, and waits in the last one where `kind` has one.
fn member(rank: i32, issued: i64, kind: Option<(&str, i64)>) -> GroupMember {
    let pending = kind.map(|(kind, bytes)| PendingOperation {
        seq: issued,
        operation_type: kind.into(),
        bytes,
        unix_ns: NOW - 14_000_000_000,
        ..PendingOperation::default()
    });
    let frame =
        StackFrame { function: "load".into(), file: "/data.py".into(), line: Some(31), ..StackFrame::default() };
    GroupMember {
        state: RankState {
            rank: Some(rank),
            step: 30,
            step_ago_s: Some(15.0),
            step_s: Some(0.1),
            frame: Some(frame),
            waits_for: "read".into(),
            ..RankState::default()
        },
        groups: vec![GroupState {
            name: "default_pg".into(),
            size: 3,
            issued,
            pending: pending.into_iter().collect(),
            ..GroupState::default()
        }],
    }
}

#[test]
fn a_rank_that_has_not_entered_is_named_and_where_it_is() {
    let members = vec![
        member(0, 121, Some(("all_reduce", 256))),
        member(1, 121, Some(("all_reduce", 256))),
        member(2, 120, None),
    ];
    let answer = judge(members, true, NOW);
    assert_eq!(answer.why, "not entered");
    assert_eq!(
        answer.verdict,
        "rank 2 has not entered all_reduce (number 121 of group default_pg, 256 B): rank 2 is in load (/data.py:31), waiting: read; ranks 0, 1 have waited in it for 14.0 s"
    );
    let collective = answer.collective.unwrap();
    assert_eq!((collective.entered, collective.missing), (vec![0, 1], vec![2]));
    assert_eq!(answer.ranks[0].operation, "all_reduce 121 of default_pg");
}

#[test]
fn where_completion_is_not_seen_numbers_tell() {
    let answer = judge(vec![member(0, 121, None), member(1, 121, None), member(2, 119, None)], true, NOW);
    assert_eq!(answer.why, "not entered");
    assert!(
        answer.verdict.starts_with("rank 2 has not entered operation 120 of group default_pg"),
        "{}",
        answer.verdict
    );
}

#[test]
fn different_operations_are_told_apart() {
    let members = vec![
        member(0, 121, Some(("all_reduce", 256))),
        member(1, 121, Some(("all_reduce", 256))),
        member(2, 121, Some(("all_gather", 96))),
    ];
    let answer = judge(members, true, NOW);
    assert_eq!(answer.why, "different");
    assert!(
        answer.verdict.ends_with("ranks 0, 1 in all_reduce (256 B), rank 2 in all_gather (96 B)"),
        "{}",
        answer.verdict
    );
    let sizes = vec![
        member(0, 9, Some(("all_reduce", 256))),
        member(1, 9, Some(("all_reduce", 128))),
        member(2, 9, Some(("all_reduce", 256))),
    ];
    assert_eq!(judge(sizes, true, NOW).why, "different");
    let gathered =
        vec![member(0, 9, Some(("all_gather", 256))), member(1, 9, Some(("all_gather", 128))), member(2, 9, None)];
    assert_eq!(judge(gathered, true, NOW).why, "not finished");
}

/// A rank of two groups, which has issued so many operations on each and waits in the last one of the group `waits`.
fn member_of_two(rank: i32, issued: [i64; 2], waits: usize) -> GroupMember {
    let one = member(rank, issued[waits], Some(("all_reduce", 4)));
    let mut groups = ["row", "column"].map(|name| GroupState { name: name.into(), size: 2, ..GroupState::default() });
    groups.iter_mut().zip(issued).for_each(|(group, issued)| group.issued = issued);
    groups[waits].pending.clone_from(&one.groups[0].pending);
    GroupMember { groups: groups.into(), ..one }
}

#[test]
fn ranks_that_wait_for_each_other_on_two_groups_are_a_deadlock() {
    let answer = judge(vec![member_of_two(0, [5, 7], 0), member_of_two(1, [4, 8], 1)], true, NOW);
    assert_eq!(answer.why, "deadlock");
    assert_eq!(
        answer.verdict,
        "ranks 0, 1 wait for each other, as ranks do that use groups in different orders: rank 0 waits in all_reduce (number 5 of group row, 4 B), which rank 1 has not entered; rank 1 waits in all_reduce (number 8 of group column, 4 B), which rank 0 has not entered; rank 0 is in load (/data.py:31), waiting: read; rank 1 is in load (/data.py:31), waiting: read"
    );
    assert_eq!(answer.collective.unwrap().group, "row");
    // Rank 1 waits in what both have entered.
    let answer = judge(vec![member_of_two(0, [5, 8], 0), member_of_two(1, [4, 8], 1)], true, NOW);
    assert_eq!(answer.why, "not entered");
}

#[test]
fn numbers_of_a_group_with_messages_accuse_no_rank() {
    let pipeline = |members: [GroupMember; 3]| {
        let with_messages = |mut member: GroupMember| {
            member.groups[0].has_messages = true;
            member
        };
        judge(members.into_iter().map(with_messages).collect(), true, NOW)
    };
    // The ranks in the middle of a pipeline count most, whatever happens.
    let idle = pipeline([member(0, 60, None), member(1, 120, None), member(2, 60, None)]);
    assert_eq!(idle.why, "outside", "{}", idle.verdict);
    let answer =
        pipeline([member(0, 61, Some(("send", 256))), member(1, 120, None), member(2, 60, Some(("recv", 256)))]);
    assert_eq!(answer.why, "messages");
    assert_eq!(
        answer.verdict,
        "on group default_pg: rank 0 has waited in send (256 B) for 14.0 s; rank 2 has waited in recv (256 B) for 14.0 s; rank 1 is in load (/data.py:31), waiting: read. The group has sends or receives, which only two of its ranks count, so its numbers do not show which rank is missing"
    );
    assert_eq!(answer.collective.unwrap().missing, Vec::<i32>::new());
    // Both ranks of a group of two count each message. A send and a receive of one number are no different operations.
    let pair = |one: i64, operation| {
        let mut members = vec![member(0, 7, Some(("recv", 8))), member(1, one, operation)];
        members.iter_mut().for_each(|member| (member.groups[0].size, member.groups[0].has_messages) = (2, true));
        judge(members, true, NOW)
    };
    assert!(pair(6, None).verdict.starts_with("rank 1 has not entered recv (number 7"));
    assert_eq!(pair(7, Some(("send", 8))).why, "not finished");
}

#[test]
fn a_link_that_does_not_answer_is_nobodys_fault() {
    let all = (0..3).map(|rank| member(rank, 9, Some(("barrier", 0)))).collect();
    let answer = judge(all, true, NOW);
    assert!(answer.why == "not finished" && answer.verdict.contains("all its 3 ranks"), "{}", answer.verdict);
    let some = (0..2).map(|rank| member(rank, 9, Some(("barrier", 0)))).collect();
    assert!(judge(some, true, NOW).verdict.contains("1 of others may be missing"));
}

#[test]
fn without_collectives_the_place_is_said_and_steps_that_go_on_are_no_hang() {
    let answer = judge((0..3).map(|rank| member(rank, 9, None)).collect(), true, NOW);
    assert!(answer.why == "outside" && answer.verdict.contains("rank 0 is in load"), "{}", answer.verdict);
    let going = judge((0..3).map(|rank| member(rank, 9, None)).collect(), false, NOW);
    assert_eq!(going.verdict, "steps go on: rank 0 finished step 29 15.0 s ago");
    assert_eq!(judge(Vec::new(), false, NOW).why, "steps go on");
    let mut members = [member(0, 9, None), member(1, 9, None)];
    members[1].state.validates = true;
    assert_eq!(judge(members.into(), false, NOW).verdict, "rank 1 validates");
}

#[test]
fn collectives_are_compared_beside_messages_where_all_ranks_count_them() {
    // The rank has issued so many operations, and so many collectives among them, and waits in the last one.
    let of = |rank, issued, collectives: i64, kind: Option<(&str, i64)>| {
        let mut member = member(rank, issued, kind);
        let group = &mut member.groups[0];
        (group.has_messages, group.collectives) = (true, Some(collectives));
        let is_message = kind.is_some_and(|(kind, _)| matches!(kind, "send" | "recv"));
        group.pending.iter_mut().for_each(|one| one.collective = (!is_message).then_some(collectives - 1));
        member
    };
    let (first, second) = (of(0, 61, 4, Some(("all_reduce", 256))), of(2, 60, 4, Some(("all_reduce", 256))));
    // Rank 1 counts most operations, because it passes messages on, and is the one that is missing.
    let answer = judge(vec![first.clone(), of(1, 120, 3, None), second.clone()], true, NOW);
    assert_eq!(answer.why, "not entered");
    assert_eq!(
        answer.verdict,
        "rank 1 has not entered all_reduce (collective 3 of group default_pg, 256 B): rank 1 is in load (/data.py:31), waiting: read; ranks 0, 2 have waited in it for 14.0 s"
    );
    assert_eq!(answer.collective.unwrap().missing, [1]);
    let other = of(1, 120, 4, Some(("all_gather", 96)));
    let differ = judge(vec![first.clone(), other, second.clone()], true, NOW);
    assert!(differ.verdict.starts_with("ranks are in different operations as collective 3 of"), "{}", differ.verdict);
    // All have entered it, and one waits in a message meanwhile.
    let waits = of(1, 120, 4, Some(("recv", 8)));
    assert_eq!(judge(vec![first.clone(), waits, second.clone()], true, NOW).why, "messages");
    // A rank that waits in a message has not entered it, and waits for another one.
    let victim = of(1, 120, 3, Some(("recv", 8)));
    assert_eq!(judge(vec![first.clone(), victim.clone(), second.clone()], true, NOW).why, "messages");
    let asleep = of(2, 60, 3, None);
    assert_eq!(judge(vec![first.clone(), victim, asleep], true, NOW).collective.unwrap().missing, [1, 2]);
    // One rank does not know how many of its operations were messages, or only messages are waited for.
    let mut unknown = of(1, 120, 3, None);
    unknown.groups[0].collectives = None;
    assert_eq!(judge(vec![first, unknown, second.clone()], true, NOW).why, "messages");
    let sends = of(0, 61, 4, Some(("send", 256)));
    assert_eq!(judge(vec![sends, of(1, 120, 3, None), of(2, 60, 3, None)], true, NOW).why, "messages");
}
