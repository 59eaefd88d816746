//! Pending collectives: those that were issued and not yet seen to be complete, and how far this process is on each group.

use std::collections::{HashMap, HashSet};

use super::device::DeviceTimestamp;
use super::modules::IntMap;
use super::persist::persist;
use super::symbol_lookup::CollectiveOperation;

/// An operation that was issued.
#[derive(Debug, Clone, Copy)]
pub(super) struct IssuedOperation {
    pub(super) thread: usize,
    pub(super) at: u64,
    pub(super) step: i64,
    pub(super) seq: i64,
    pub(super) kind: u64,
    pub(super) bytes: u64,
    /// Its number among the collectives of its group, from 0. None for a message, and where not all before it were recorded.
    pub(super) collective: Option<i64>,
    /// Whether nothing else was open on its thread, which waits for it: that wait is communication time.
    pub(super) waited_for: bool,
    /// When the device reached the issue, for an operation that a stream waits for.
    pub(super) device: DeviceTimestamp,
}

/// Pending operations.
#[derive(Debug, Default)]
pub(super) struct PendingOperations {
    pub(super) waiting: IntMap<u64, IssuedOperation>,
    pub(super) handles: IntMap<u64, u64>,
    pub(super) kinds: HashMap<u64, CollectiveOperation>,
    /// Groups by their numbers.
    pub(super) groups: HashMap<u32, GroupProgress>,
}

/// How far this process is on a process group.
#[derive(Debug)]
pub(super) struct GroupProgress {
    pub(super) name: String,
    pub(super) size: i32,
    /// Number of the newest operation that was issued.
    pub(super) issued: i64,
    /// Number of the newest operation that was seen to be complete.
    pub(super) completed: i64,
    /// When the newest operation was issued.
    pub(super) at: u64,
    /// How many operations were recorded.
    pub(super) recorded: i64,
    /// How many of those were sends or receives.
    pub(super) messages: i64,
}

impl GroupProgress {
    /// How many collectives were issued. None where some operations were not recorded, and may have been messages.
    pub(super) fn collectives(&self) -> Option<i64> {
        (self.recorded == self.issued.saturating_add(1)).then_some(self.recorded - self.messages)
    }
}

persist!(IssuedOperation { thread, at, step, seq, kind, bytes, collective, waited_for, device });
persist!(PendingOperations { waiting, handles, kinds, groups });
persist!(GroupProgress { name, size, issued, completed, at, recorded, messages });

/// Whether an operation is between two ranks of its group alone.
pub(super) fn is_message(name: &str) -> bool {
    matches!(name, "send" | "recv")
}

/// A record has the number of an operation modulo this.
const NUMBERS: i64 = 1 << 30;

/// Restores an operation's full number from `recorded`, its low 30 bits: the candidate nearest to `newest`, the newest number of
/// its group. At a thousand operations a second a group needs more bits after 12 days.
pub(super) fn whole_number(recorded: i64, newest: i64) -> i64 {
    // What is read of a dead process may be any number.
    let ahead = recorded.wrapping_sub(newest).rem_euclid(NUMBERS);
    newest.wrapping_add(if ahead < NUMBERS / 2 { ahead } else { ahead - NUMBERS })
}

impl PendingOperations {
    /// If there are more than `most` groups, forgets the one that has been unused longest and has no pending operation: a program
    /// may make groups without end. A group that is used again is learned again.
    pub(super) fn keep_groups(&mut self, most: usize) {
        if self.groups.len() <= most {
            return;
        }
        let group_of = |issued: &IssuedOperation| self.kinds.get(&issued.kind).map(|kind| kind.group_id);
        let busy: HashSet<u32> = self.waiting.values().filter_map(group_of).collect();
        let idle = self.groups.iter().filter(|(number, _)| !busy.contains(number));
        if let Some(number) = idle.min_by_key(|(_, group)| group.at).map(|(number, _)| *number) {
            self.groups.remove(&number);
            self.kinds.retain(|_, kind| kind.group_id != number);
        }
    }

    pub(super) fn under_way(&self, key: u64) -> Option<(&IssuedOperation, &CollectiveOperation)> {
        let issued = self.waiting.get(&key)?;
        Some((issued, self.kinds.get(&issued.kind)?))
    }
}

/// When an operation was complete.
#[derive(Debug, Clone, Copy)]
pub(super) enum OperationEnd {
    At(u64),
    /// This time after the device reached the issue.
    After(u64),
    /// At an unknown time before its end was reported.
    Unknown,
    /// The completion was not watched.
    NotSeen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_a_program_makes_without_end_are_forgotten_and_none_that_is_waited_for() {
        let mut operations = PendingOperations::default();
        for number in 0..4_u32 {
            let at = u64::from(number);
            let (name, size) = (number.to_string(), 2);
            let progress = GroupProgress { name, size, issued: 0, completed: -1, at, recorded: 1, messages: 0 };
            operations.groups.insert(number, progress);
            let operation = CollectiveOperation {
                name: "all_reduce".into(),
                group_id: number,
                group_name: number.to_string(),
                group_size: 2,
                dtype: None,
                async_op: false,
                backend: "gloo".into(),
            };
            operations.kinds.insert(u64::from(number), operation);
            operations.keep_groups(3);
            if number == 0 {
                let (thread, step, seq, kind, bytes) = (0, 0, 0, 0, 0);
                let issued = IssuedOperation {
                    thread,
                    at,
                    step,
                    seq,
                    kind,
                    bytes,
                    collective: None,
                    waited_for: true,
                    device: DeviceTimestamp::None,
                };
                operations.waiting.insert(7, issued);
            }
        }
        let mut left: Vec<u32> = operations.groups.keys().copied().collect();
        left.sort_unstable();
        assert_eq!((left, operations.kinds.len()), (vec![0, 2, 3], 3));
    }
}
