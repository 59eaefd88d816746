//! The verdict on a hang, from how far each rank is.

use std::collections::{BTreeMap, BTreeSet};

use probe_common::collectives::has_equal_tensors;
use probe_common::wait_cycle;
use probe_inspect::stacks::fold::{Owner, names};
use probe_inspect::stacks::page::location;
use probe_proto::v1::{Collective, GroupState, HangAnswer, PendingOperation, RankState};

/// Ranks of which a verdict says where they are.
const MAX_PHRASES: usize = 4;

/// A rank, and how far it is on its process groups.
#[derive(Debug, Clone, Default)]
pub struct GroupMember {
    pub state: RankState,
    pub groups: Vec<GroupState>,
}

impl GroupMember {
    fn owner(&self) -> Owner {
        self.state.rank.map_or(Owner::Pid(self.state.pid), Owner::Rank)
    }

    fn issued(&self, group: &str) -> Option<i64> {
        self.groups.iter().find(|state| state.name == group).map(|state| state.issued)
    }

    fn pending(&self, group: &str, seq: i64) -> Option<&PendingOperation> {
        let state = self.groups.iter().find(|state| state.name == group)?;
        state.pending.iter().find(|operation| operation.seq == seq)
    }
}

/// The oldest operation that a process has not finished, and its group.
pub fn oldest_pending(groups: &[GroupState]) -> Option<(&GroupState, &PendingOperation)> {
    let pending = groups.iter().filter_map(|group| Some((group, group.pending.first()?)));
    pending.min_by_key(|(_, operation)| operation.unix_ns)
}

/// The operation that keeps a group from going on, as far as is known.
struct LiveStall<'a> {
    group: &'a str,
    size: i32,
    seq: i64,
    /// The operation as a rank reports it that waits in it.
    operation: Option<&'a PendingOperation>,
    /// Of a group with messages: the ranks that wait in an operation of it.
    entered: Vec<&'a GroupMember>,
    /// None is known of a group with messages.
    missing: Vec<&'a GroupMember>,
    /// Of a group with messages: the ranks that wait in no operation of it.
    elsewhere: Vec<&'a GroupMember>,
    /// Two of its ranks count a message and the others do not, so that the numbers of ranks can't be compared.
    has_messages: bool,
}

/// Finds the verdict. `stopped`: whether steps have stopped. `now_ns`: the time of the members' states (ns since 1970).
pub fn judge(members: Vec<GroupMember>, stopped: bool, now_ns: i64) -> HangAnswer {
    let mut answer = HangAnswer { unix_ns: now_ns, ..HangAnswer::default() };
    let stops = stops(&members);
    if !stopped {
        let with_steps = members.iter().filter_map(|member| Some((member.state.step_ago_s?, member)));
        let freshest = with_steps.min_by(|(one, _), (other, _)| one.total_cmp(other));
        answer.why = "steps go on".into();
        let validating: Vec<Owner> =
            members.iter().filter(|member| member.state.validates).map(GroupMember::owner).collect();
        answer.verdict = match freshest {
            _ if !validating.is_empty() => {
                format!("{} {}", names(&validating), if validating.len() == 1 { "validates" } else { "validate" })
            }
            Some((ago, member)) if member.state.step > 0 && member.state.step_s.is_some() => format!(
                "steps go on: {} finished step {} {} ago",
                names(&[member.owner()]),
                member.state.step - 1,
                seconds(ago)
            ),
            _ => "no rank has finished enough steps yet to say what is long".into(),
        };
    } else if let Some(cycle) = deadlock(&members, &stops) {
        (answer.why, answer.verdict) = ("deadlock".into(), deadlock_sentence(&cycle));
        answer.collective = cycle.first().map(|wait| wait.stop.to_message(now_ns));
    } else if let Some(stop) = worst(&stops) {
        (answer.why, answer.verdict) = words(stop, now_ns);
        answer.collective = Some(stop.to_message(now_ns));
    } else {
        answer.why = "outside".into();
        answer.verdict = outside(&members);
    }
    for member in &members {
        let mut state = member.state.clone();
        if let Some((group, operation)) = oldest_pending(&member.groups) {
            state.operation = format!("{} {} of {}", operation.operation_type, operation.seq, group.name);
        }
        answer.ranks.push(state);
    }
    answer
}

/// For every group on which a rank waits, or on which some ranks are further than others, the oldest operation that stops it.
fn stops(members: &[GroupMember]) -> Vec<LiveStall<'_>> {
    let groups: BTreeSet<&str> =
        members.iter().flat_map(|member| &member.groups).map(|group| group.name.as_str()).collect();
    groups.into_iter().filter_map(|group| stop(members, group)).collect()
}

fn stop<'a>(members: &'a [GroupMember], name: &'a str) -> Option<LiveStall<'a>> {
    let group_of = |member: &'a GroupMember| member.groups.iter().find(|group| group.name == name);
    let states = || members.iter().filter_map(group_of);
    let size = states().map(|group| group.size).max()?;
    // Where there are two ranks, both count each message.
    if size > 2 && states().any(|group| group.has_messages) {
        return stop_with_messages(members, name, size);
    }
    let pending = states().filter_map(|group| group.pending.first()).map(|operation| operation.seq).min();
    let (least, most) = (states().map(|group| group.issued).min()?, states().map(|group| group.issued).max()?);
    // Where completion is not known (NCCL), ranks that are further have issued what the others have not.
    let seq = match pending {
        Some(seq) => seq,
        None if least < most => least + 1,
        None => return None,
    };
    // A rank that has issued nothing on a group may not be in it, unless the group has all ranks.
    let has_all_ranks = usize::try_from(size).is_ok_and(|size| size == members.len());
    let (entered, missing) = members
        .iter()
        .filter(|member| has_all_ranks || group_of(member).is_some())
        .partition(|member| member.issued(name).is_some_and(|issued| issued >= seq));
    let operation =
        members.iter().filter_map(|member| member.pending(name, seq)).min_by_key(|operation| operation.unix_ns);
    Some(LiveStall { group: name, size, seq, operation, entered, missing, elsewhere: Vec::new(), has_messages: false })
}

/// The oldest operation that a rank waits in on a group with messages.
fn stop_with_messages<'a>(members: &'a [GroupMember], name: &'a str, size: i32) -> Option<LiveStall<'a>> {
    let of_group = |member: &'a GroupMember| member.groups.iter().find(|group| group.name == name);
    let pending = |member: &'a GroupMember| of_group(member).and_then(|group| group.pending.first());
    let operation = members.iter().filter_map(pending).min_by_key(|operation| operation.unix_ns)?;
    let in_group = members.iter().filter(|member| of_group(member).is_some());
    let (entered, elsewhere) = in_group.partition(|member| pending(member).is_some());
    let (seq, operation) = (operation.seq, Some(operation));
    Some(LiveStall { group: name, size, seq, operation, entered, missing: Vec::new(), elsewhere, has_messages: true })
}

/// The operation of the verdict: first one for which a rank is missing or differs, then the one that is waited for longest.
fn worst<'a, 'b>(stops: &'b [LiveStall<'a>]) -> Option<&'b LiveStall<'a>> {
    stops.iter().min_by_key(|stop| {
        let since = stop.operation.map_or(i64::MAX, |operation| operation.unix_ns);
        (stop.missing.is_empty() && stop.differing().is_none(), since)
    })
}

/// A rank that waits in an operation for another rank, which waits for a rank itself.
struct CycleWait<'a, 'b> {
    member: &'a GroupMember,
    stop: &'b LiveStall<'a>,
    missing: &'a GroupMember,
}

/// The ranks that wait for each other, each in the oldest operation that it has not finished.
fn deadlock<'a, 'b>(members: &'a [GroupMember], stops: &'b [LiveStall<'a>]) -> Option<Vec<CycleWait<'a, 'b>>> {
    let index_of = |member: &GroupMember| members.iter().position(|one| std::ptr::eq(one, member));
    let mut waits = BTreeMap::<usize, (&LiveStall<'a>, BTreeSet<usize>)>::new();
    for (index, member) in members.iter().enumerate() {
        let Some((group, operation)) = oldest_pending(&member.groups) else { continue };
        let is_in = |stop: &&LiveStall<'_>| stop.group == group.name && stop.seq == operation.seq;
        if let Some(stop) = stops.iter().find(is_in) {
            waits.insert(index, (stop, stop.missing.iter().filter_map(|missing| index_of(missing)).collect()));
        }
    }
    let whom = waits.iter().map(|(index, (_, missing))| (*index, missing.clone())).collect();
    let cycle = wait_cycle::shortest(&whom)?;
    let next = cycle.iter().cycle().skip(1);
    let wait = |(index, next): (&usize, &usize)| {
        Some(CycleWait { member: members.get(*index)?, stop: waits.get(index)?.0, missing: members.get(*next)? })
    };
    cycle.iter().zip(next).map(wait).collect()
}

fn deadlock_sentence(cycle: &[CycleWait<'_, '_>]) -> String {
    let all: Vec<Owner> = cycle.iter().map(|wait| wait.member.owner()).collect();
    let waiting = |wait: &CycleWait<'_, '_>| {
        let (one, other) = (names(&[wait.member.owner()]), names(&[wait.missing.owner()]));
        format!("{one} waits in {}, which {other} has not entered", wait.stop.called())
    };
    let phrases: Vec<String> = cycle.iter().take(MAX_PHRASES).map(waiting).collect();
    let places: Vec<String> = cycle.iter().take(MAX_PHRASES).map(|wait| whereabouts(wait.member)).collect();
    format!(
        "{} wait for each other, as ranks do that use groups in different orders: {}; {}",
        names(&all),
        phrases.join("; "),
        places.join("; ")
    )
}

impl LiveStall<'_> {
    /// The kinds of operation that ranks issued under this number, where they differ.
    fn differing(&self) -> Option<Vec<(String, Vec<Owner>)>> {
        if self.has_messages {
            return None;
        }
        let mut kinds = Vec::<(String, Vec<Owner>)>::new();
        let mut sizes = BTreeSet::new();
        for member in &self.entered {
            let Some(operation) = member.pending(self.group, self.seq) else { continue };
            if matches!(&*operation.operation_type, "send" | "recv") {
                continue;
            }
            let what = format!("{} ({})", operation.operation_type, bytes(operation.bytes));
            sizes.insert((operation.operation_type.as_str(), operation.bytes));
            match kinds.iter_mut().find(|(kind, _)| *kind == what) {
                Some((_, owners)) => owners.push(member.owner()),
                None => kinds.push((what, vec![member.owner()])),
            }
        }
        let types: BTreeSet<&str> = sizes.iter().map(|(kind, _)| *kind).collect();
        let equal = || types.iter().all(|kind| has_equal_tensors(kind));
        (types.len() > 1 || (sizes.len() > 1 && equal())).then_some(kinds)
    }

    fn called(&self) -> String {
        match self.operation {
            Some(operation) => format!(
                "{} (number {} of group {}, {})",
                operation.operation_type,
                self.seq,
                self.group,
                bytes(operation.bytes)
            ),
            None => format!("operation {} of group {}", self.seq, self.group),
        }
    }

    fn waited(&self, now_ns: i64) -> f64 {
        self.operation.map_or(0.0, |operation| now_ns.saturating_sub(operation.unix_ns).max(0) as f64 / 1e9)
    }

    fn to_message(&self, now_ns: i64) -> Collective {
        let ranks = |members: &[&GroupMember]| members.iter().filter_map(|member| member.state.rank).collect();
        Collective {
            group: self.group.to_owned(),
            size: self.size,
            seq: self.seq,
            operation_type: self.operation.map(|operation| operation.operation_type.clone()).unwrap_or_default(),
            bytes: self.operation.map_or(0, |operation| operation.bytes),
            waited_s: self.waited(now_ns),
            entered: ranks(&self.entered),
            missing: ranks(&self.missing),
        }
    }
}

fn words(stop: &LiveStall<'_>, now_ns: i64) -> (String, String) {
    let owners = |members: &[&GroupMember]| names(&members.iter().map(|member| member.owner()).collect::<Vec<_>>());
    let has = |members: &[&GroupMember]| if members.len() == 1 { "has" } else { "have" };
    let (entered, missing) = (&stop.entered[..], &stop.missing[..]);
    if stop.has_messages {
        return ("messages".into(), message_sentence(stop, now_ns));
    }
    if let Some(kinds) = stop.differing() {
        let each: Vec<String> = kinds.iter().map(|(what, ranks)| format!("{} in {what}", names(ranks))).collect();
        let verdict = format!(
            "ranks are in different operations as number {} of group {}: {}",
            stop.seq,
            stop.group,
            each.join(", ")
        );
        return ("different".into(), verdict);
    }
    if !missing.is_empty() {
        let phrases: Vec<String> = missing.iter().take(MAX_PHRASES).map(|member| whereabouts(member)).collect();
        let waiting = match stop.operation {
            Some(_) => {
                format!("{} {} waited in it for {}", owners(entered), has(entered), seconds(stop.waited(now_ns)))
            }
            None => format!("{} {}", owners(entered), has(entered)),
        };
        let verdict = format!(
            "{} {} not entered {}: {}; {waiting}",
            owners(missing),
            has(missing),
            stop.called(),
            phrases.join("; ")
        );
        return ("not entered".into(), verdict);
    }
    let away = usize::try_from(stop.size).unwrap_or_default().saturating_sub(entered.len());
    let who = if away > 0 {
        format!(
            "the {} of its {} ranks that are known here, so that {away} of others may be missing",
            entered.len(),
            stop.size
        )
    } else {
        format!("all its {} ranks", stop.size)
    };
    let verdict = format!(
        "{} was entered by {who} and has not finished for {}: a link, a device or a peer does not answer",
        stop.called(),
        seconds(stop.waited(now_ns))
    );
    ("not finished".into(), verdict)
}

/// The verdict on a group with messages: in what each rank waits, and where the others are.
fn message_sentence(stop: &LiveStall<'_>, now_ns: i64) -> String {
    let waiting = |member: &&GroupMember| {
        let group = member.groups.iter().find(|group| group.name == stop.group)?;
        let operation = group.pending.first()?;
        let (who, what) = (names(&[member.owner()]), &operation.operation_type);
        let waited = now_ns.saturating_sub(operation.unix_ns).max(0) as f64 / 1e9;
        Some(format!("{who} has waited in {what} ({}) for {}", bytes(operation.bytes), seconds(waited)))
    };
    let phrases: Vec<String> = stop.entered.iter().filter_map(waiting).take(MAX_PHRASES).collect();
    let others: Vec<String> = stop.elsewhere.iter().take(MAX_PHRASES).map(|member| whereabouts(member)).collect();
    let others = if others.is_empty() { String::new() } else { format!("; {}", others.join("; ")) };
    format!(
        "on group {}: {}{others}. The group has sends or receives, which only two of its ranks count, so its numbers do not \
         show which rank is missing",
        stop.group,
        phrases.join("; ")
    )
}

/// The verdict where no rank waits in a collective: where the ranks with the oldest step are.
fn outside(members: &[GroupMember]) -> String {
    let mut oldest: Vec<&GroupMember> = members.iter().collect();
    let ago = |member: &GroupMember| member.state.step_ago_s.unwrap_or(0.0);
    oldest.sort_by(|one, other| ago(other).total_cmp(&ago(one)));
    let phrases: Vec<String> = oldest.iter().take(MAX_PHRASES).map(|member| whereabouts(member)).collect();
    let ago = oldest.first().map_or(0.0, |member| ago(member));
    format!("no step for {}, and no collective is waited for: {}", seconds(ago), phrases.join("; "))
}

/// Where a rank is: "rank 1 is in load (data.py:31), waiting: read".
fn whereabouts(member: &GroupMember) -> String {
    let state = &member.state;
    let who = names(&[member.owner()]);
    let Some(frame) = &state.frame else {
        let why = if state.problem.is_empty() { "it runs no Python of yours" } else { &state.problem };
        return format!("where {who} is, is not known ({why})");
    };
    let mut text = format!("{who} is in {} ({})", frame.function, location(frame));
    if state.gil {
        text.push_str(" and holds the GIL");
    }
    if !state.waits_for.is_empty() {
        text.push_str(", waiting: ");
        text.push_str(&state.waits_for);
    } else if state.running {
        text.push_str(", running");
    }
    text
}

/// A duration as messages have it: "14.2 s", "3 min".
pub fn seconds(seconds: f64) -> String {
    if seconds < 180.0 { format!("{seconds:.1} s") } else { format!("{:.0} min", seconds / 60.0) }
}

fn bytes(bytes: i64) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use probe_proto::v1::StackFrame;

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
                has_messages: false,
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
        let mut groups =
            ["row", "column"].map(|name| GroupState { name: name.into(), size: 2, ..GroupState::default() });
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
}
