//! Collectives under way: those that were issued and not yet seen to be complete, and how far this process is on each group.

use std::collections::HashMap;

use super::device::Device;
use super::modules::IntMap;
use super::names::Operation;
use super::persist::persist;

/// An operation that was issued.
#[derive(Debug, Clone, Copy)]
pub(super) struct Issued {
    pub(super) thread: usize,
    pub(super) at: u64,
    pub(super) step: i64,
    pub(super) seq: i64,
    pub(super) kind: u64,
    pub(super) bytes: u64,
    /// Whether nothing else was open on its thread, which waits for it: that wait is communication time.
    pub(super) waited_for: bool,
    /// When the device reached the issue, for an operation that a stream waits for.
    pub(super) device: Device,
}

/// Operations under way.
#[derive(Debug, Default)]
pub(super) struct Operations {
    pub(super) waiting: IntMap<u64, Issued>,
    pub(super) handles: IntMap<u64, u64>,
    pub(super) kinds: HashMap<u64, Operation>,
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
}

persist!(Issued { thread, at, step, seq, kind, bytes, waited_for, device });
persist!(Operations { waiting, handles, kinds, groups });
persist!(GroupProgress { name, size, issued, completed });

impl Operations {
    pub(super) fn under_way(&self, key: u64) -> Option<(&Issued, &Operation)> {
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
