//! The operation that keeps a process group of a live run from going on, from how far each rank is.

use std::collections::{BTreeMap, BTreeSet};

use probe_common::collectives::has_equal_tensors;
use probe_common::wait_cycle;
use probe_inspect::stacks::fold::ProcessLabel;
use probe_proto::v1::{Collective, GroupState, PendingOperation, RankState};

use super::hang_sentences::{bytes, operation_name};

/// A rank, and how far it is on its process groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct GroupMember {
    pub state: RankState,
    pub groups: Vec<GroupState>,
}

impl GroupMember {
    pub(crate) fn owner(&self) -> ProcessLabel {
        self.state.rank.map_or(ProcessLabel::Pid(self.state.pid), ProcessLabel::Rank)
    }

    fn group(&self, name: &str) -> Option<&GroupState> {
        self.groups.iter().find(|state| state.name == name)
    }
}

/// The numbers by which the operations of a group are compared between its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationNumbering {
    /// Those of all its operations.
    Operations,
    /// Those of its collectives alone: it has messages, which two of its ranks count and the others do not.
    Collectives,
    /// None: its ranks are not compared. It has messages, and its collectives were not counted alone, or no rank waits in one.
    NotCompared,
}

impl OperationNumbering {
    fn number(self, operation: &PendingOperation) -> Option<i64> {
        match self {
            Self::Operations => Some(operation.seq),
            Self::Collectives => operation.collective,
            Self::NotCompared => None,
        }
    }

    /// The number of the newest operation that a rank has issued.
    fn newest(self, group: &GroupState) -> Option<i64> {
        match self {
            Self::Operations => Some(group.issued),
            Self::Collectives => group.collectives.map(|count| count - 1),
            Self::NotCompared => None,
        }
    }
}

/// The oldest operation that a process has not finished, and its group.
pub(crate) fn oldest_pending(groups: &[GroupState]) -> Option<(&GroupState, &PendingOperation)> {
    let pending = groups.iter().filter_map(|group| Some((group, group.pending.first()?)));
    pending.min_by_key(|(_, operation)| operation.unix_ns)
}

/// The operation that keeps a group from going on, as far as is known.
pub(crate) struct LiveStall<'a> {
    pub(crate) group: &'a str,
    pub(crate) size: i32,
    pub(crate) numbering: OperationNumbering,
    /// The number of the operation; of a group whose ranks are not compared, that of the rank that waits in it.
    pub(crate) number: i64,
    /// The operation as a rank reports it that waits in it.
    pub(crate) operation: Option<&'a PendingOperation>,
    /// The ranks that have entered it. Of a group whose ranks are not compared: those that wait in an operation of it.
    pub(crate) entered: Vec<&'a GroupMember>,
    /// The ranks that have not. None is known of a group whose ranks are not compared.
    pub(crate) missing: Vec<&'a GroupMember>,
    /// Of a group whose ranks are not compared: those that wait in no operation of it.
    pub(crate) elsewhere: Vec<&'a GroupMember>,
}

impl LiveStall<'_> {
    /// The kinds of operation that ranks issued under this number, where they differ.
    pub(crate) fn differing(&self) -> Option<Vec<(String, Vec<ProcessLabel>)>> {
        let mut kinds = Vec::<(String, Vec<ProcessLabel>)>::new();
        let mut sizes = BTreeSet::new();
        for member in &self.entered {
            let Some(operation) = self.operation_of(member) else { continue };
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

    /// Whether this is the operation of the stall, which is one of its group.
    fn is_its(&self, operation: &PendingOperation) -> bool {
        self.numbering.number(operation) == Some(self.number)
    }

    /// The operation as this rank reports it, if it waits in it.
    fn operation_of<'b>(&self, member: &'b GroupMember) -> Option<&'b PendingOperation> {
        member.group(self.group)?.pending.iter().find(|operation| self.is_its(operation))
    }

    /// Its number as a verdict names it.
    pub(crate) fn position(&self) -> String {
        match self.numbering {
            OperationNumbering::Collectives => format!("collective {}", self.number),
            OperationNumbering::Operations | OperationNumbering::NotCompared => format!("number {}", self.number),
        }
    }

    /// The operation as a verdict names it.
    pub(crate) fn called(&self) -> String {
        match self.operation {
            Some(operation) => {
                operation_name(&operation.operation_type, &self.position(), self.group, &bytes(operation.bytes))
            }
            None => format!("operation {} of group {}", self.number, self.group),
        }
    }

    /// How long the operation has been waited for (seconds).
    pub(crate) fn waited(&self, now_ns: i64) -> f64 {
        self.operation.map_or(0.0, |operation| now_ns.saturating_sub(operation.unix_ns).max(0) as f64 / 1e9)
    }

    pub(crate) fn to_message(&self, now_ns: i64) -> Collective {
        let ranks = |members: &[&GroupMember]| members.iter().filter_map(|member| member.state.rank).collect();
        Collective {
            group: self.group.to_owned(),
            size: self.size,
            seq: self.operation.map_or(self.number, |operation| operation.seq),
            operation_type: self.operation.map(|operation| operation.operation_type.clone()).unwrap_or_default(),
            bytes: self.operation.map_or(0, |operation| operation.bytes),
            waited_s: self.waited(now_ns),
            entered: ranks(&self.entered),
            missing: ranks(&self.missing),
        }
    }
}

/// For every group on which a rank waits, or on which some ranks are further than others, the oldest operation that stops it.
pub(crate) fn stalls(members: &[GroupMember]) -> Vec<LiveStall<'_>> {
    let groups: BTreeSet<&str> =
        members.iter().flat_map(|member| &member.groups).map(|group| group.name.as_str()).collect();
    groups.into_iter().filter_map(|group| stall(members, group)).collect()
}

fn stall<'a>(members: &'a [GroupMember], name: &'a str) -> Option<LiveStall<'a>> {
    let states = || members.iter().filter_map(|member| member.group(name));
    let size = states().map(|group| group.size).max()?;
    // Where there are two ranks, both count each message.
    if size <= 2 || !states().any(|group| group.has_messages) {
        return compare(members, name, size, OperationNumbering::Operations);
    }
    let are_counted = states().all(|group| group.collectives.is_some());
    let by_collectives = if are_counted { compare(members, name, size, OperationNumbering::Collectives) } else { None };
    let waits_in_message = |member: &GroupMember| {
        member.group(name).is_some_and(|group| group.pending.iter().any(|operation| operation.collective.is_none()))
    };
    // A rank that waits in a message waits for another one: that it has not entered the collective, or that the collective is not
    // finished, is not its doing.
    let is_by_message = |stall: &LiveStall<'_>| match &stall.missing[..] {
        [] => stall.differing().is_none() && members.iter().any(waits_in_message),
        missing => missing.iter().all(|member| waits_in_message(member)),
    };
    by_collectives.filter(|stall| !is_by_message(stall)).or_else(|| not_compared(members, name, size))
}

/// The oldest operation that a rank waits in on a group whose ranks are compared, or that not all ranks have entered.
fn compare<'a>(
    members: &'a [GroupMember],
    name: &'a str,
    size: i32,
    numbering: OperationNumbering,
) -> Option<LiveStall<'a>> {
    let states = || members.iter().filter_map(|member| member.group(name));
    let newest = || states().filter_map(|group| numbering.newest(group));
    let pending =
        states().filter_map(|group| group.pending.iter().find_map(|operation| numbering.number(operation))).min();
    let (least, most) = (newest().min()?, newest().max()?);
    let number = match pending {
        Some(number) => number,
        // Where completion is not known (NCCL), ranks that are further have issued what the others have not. A rank that has
        // not may still wait in a message.
        None if least < most && numbering == OperationNumbering::Operations => least + 1,
        None => return None,
    };
    // A rank that has issued nothing on a group may not be in it, unless the group has all ranks.
    let has_all_ranks = usize::try_from(size).is_ok_and(|size| size == members.len());
    let has_entered = |member: &&GroupMember| {
        member.group(name).and_then(|group| numbering.newest(group)).is_some_and(|of| of >= number)
    };
    let (entered, missing) =
        members.iter().filter(|member| has_all_ranks || member.group(name).is_some()).partition(has_entered);
    let stall =
        LiveStall { group: name, size, numbering, number, operation: None, entered, missing, elsewhere: Vec::new() };
    let operation =
        members.iter().filter_map(|member| stall.operation_of(member)).min_by_key(|operation| operation.unix_ns);
    Some(LiveStall { operation, ..stall })
}

/// The oldest operation that a rank waits in on a group whose ranks are not compared.
fn not_compared<'a>(members: &'a [GroupMember], name: &'a str, size: i32) -> Option<LiveStall<'a>> {
    let pending = |member: &'a GroupMember| member.group(name).and_then(|group| group.pending.first());
    let operation = members.iter().filter_map(pending).min_by_key(|operation| operation.unix_ns)?;
    let in_group = members.iter().filter(|member| member.group(name).is_some());
    let (entered, elsewhere) = in_group.partition(|member| pending(member).is_some());
    let (numbering, number, missing) = (OperationNumbering::NotCompared, operation.seq, Vec::new());
    Some(LiveStall { group: name, size, numbering, number, operation: Some(operation), entered, missing, elsewhere })
}

/// The operation of the verdict: first one for which a rank is missing or differs, then the one that is waited for longest.
pub(crate) fn worst<'a, 'b>(stalls: &'b [LiveStall<'a>]) -> Option<&'b LiveStall<'a>> {
    stalls.iter().min_by_key(|stall| {
        let since = stall.operation.map_or(i64::MAX, |operation| operation.unix_ns);
        (stall.missing.is_empty() && stall.differing().is_none(), since)
    })
}

/// A rank that waits in an operation for another rank, which waits for a rank itself.
pub(crate) struct CycleWait<'a, 'b> {
    pub(crate) member: &'a GroupMember,
    pub(crate) stall: &'b LiveStall<'a>,
    pub(crate) missing: &'a GroupMember,
}

/// The ranks that wait for each other, each in the oldest operation that it has not finished.
pub(crate) fn deadlock<'a, 'b>(
    members: &'a [GroupMember],
    stalls: &'b [LiveStall<'a>],
) -> Option<Vec<CycleWait<'a, 'b>>> {
    let index_of = |member: &GroupMember| members.iter().position(|one| std::ptr::eq(one, member));
    let mut waits = BTreeMap::<usize, (&LiveStall<'a>, BTreeSet<usize>)>::new();
    for (index, member) in members.iter().enumerate() {
        let Some((group, operation)) = oldest_pending(&member.groups) else { continue };
        let is_in = |stall: &&LiveStall<'_>| stall.group == group.name && stall.is_its(operation);
        if let Some(stall) = stalls.iter().find(is_in) {
            waits.insert(index, (stall, stall.missing.iter().filter_map(|missing| index_of(missing)).collect()));
        }
    }
    let whom = waits.iter().map(|(index, (_, missing))| (*index, missing.clone())).collect();
    let cycle = wait_cycle::shortest(&whom)?;
    let next = cycle.iter().cycle().skip(1);
    let wait = |(index, next): (&usize, &usize)| {
        Some(CycleWait { member: members.get(*index)?, stall: waits.get(index)?.0, missing: members.get(*next)? })
    };
    cycle.iter().zip(next).map(wait).collect()
}
