//! Module calls, and the owners of autograd nodes among them.

use std::collections::VecDeque;

use probe_proto::table::Text;

use super::device::{DeviceTime, DeviceTimestamp};
use super::modules::IntMap;
use super::persist::{Persist, PersistedBytes, persist};

/// A call, by the order in which calls began; [`NO_CALL`] is none.
pub(crate) type CallId = u64;
/// The id for what is outside every module.
pub(crate) const NO_CALL: CallId = u64::MAX;

/// A module call that has begun.
#[derive(Debug)]
pub(crate) struct ModuleCall {
    pub(crate) module: u32,
    pub(crate) address: u64,
    pub(crate) parent: CallId,
    pub(crate) depth: i32,
    pub(crate) call_index: i32,
    pub(crate) step: i64,
    pub(crate) micro_step: i32,
    pub(crate) begin: u64,
    /// Own time so far.
    pub(crate) own: u64,
    /// Own device time so far, and when the device reached the call's beginning.
    pub(super) device: DeviceTime,
    pub(super) device_begin: DeviceTimestamp,
    pub(crate) recompute: bool,
    /// Whether modules were recorded at its beginning, so that it gets a row.
    pub(crate) detail: bool,
    pub(crate) shape: Option<Text>,
}

persist!(ModuleCall {
    module,
    address,
    parent,
    depth,
    call_index,
    step,
    micro_step,
    begin,
    own,
    device,
    device_begin,
    recompute,
    detail,
    shape,
});
persist!(ModuleCalls { first, calls });
persist!(Breakpoints { points, step });

/// The largest number of calls. Beyond it the oldest are forgotten, and their backward work belongs to no module.
const MAX_CALLS: usize = 1 << 18;

/// Calls of this step and the one before, for as long as autograd may come back to them.
#[derive(Debug, Default)]
pub(crate) struct ModuleCalls {
    first: CallId,
    calls: VecDeque<ModuleCall>,
}

impl ModuleCalls {
    pub(crate) fn push(&mut self, call: ModuleCall) -> CallId {
        self.calls.push_back(call);
        self.first + self.calls.len() as u64 - 1
    }

    pub(crate) fn get(&self, id: CallId) -> Option<&ModuleCall> {
        self.calls.get(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn get_mut(&mut self, id: CallId) -> Option<&mut ModuleCall> {
        self.calls.get_mut(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    /// All calls, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CallId, &ModuleCall)> {
        (self.first..).zip(&self.calls)
    }

    /// Forgets calls of steps before `step`, down to the oldest that is still open.
    pub(crate) fn forget_before(&mut self, step: i64, oldest_open: CallId) {
        while self.first < oldest_open && self.calls.front().is_some_and(|call| call.step < step) {
            self.forget_first();
        }
    }

    /// Keeps the number of calls bounded where no step ever ends.
    pub(crate) fn drop_oldest(&mut self, oldest_open: CallId) {
        if self.calls.len() > MAX_CALLS {
            while self.first < oldest_open && self.calls.len() > MAX_CALLS / 2 {
                self.forget_first();
            }
        }
    }

    fn forget_first(&mut self) {
        self.calls.pop_front();
        self.first += 1;
    }
}

/// The innermost call of one thread, from a sequence number on.
#[derive(Debug, Default)]
pub(crate) struct Breakpoints {
    points: VecDeque<(u64, CallId)>,
    /// Sequence number at the end of the step before.
    step: u64,
}

impl Breakpoints {
    /// Records that `call` is the innermost one from `sequence` on.
    pub(crate) fn push(&mut self, sequence: u64, call: CallId) {
        match self.points.back_mut() {
            Some(last) if last.0 == sequence => last.1 = call,
            Some(last) if last.0 > sequence => {
                // Numbers of a thread only grow: another thread has this ring now.
                self.points.clear();
                self.points.push_back((sequence, call));
            }
            _ => self.points.push_back((sequence, call)),
        }
        if self.points.len() > MAX_CALLS {
            self.points.drain(..MAX_CALLS / 2);
        }
    }

    /// The call that was innermost when the node with this number was made.
    pub(crate) fn owner(&self, sequence: u64) -> CallId {
        let after = self.points.partition_point(|(first, _)| *first <= sequence);
        after.checked_sub(1).and_then(|index| self.points.get(index)).map_or(NO_CALL, |(_, call)| *call)
    }

    /// Ends a step: forgets what was before the previous step.
    pub(crate) fn end_step(&mut self) {
        let keep = self.points.partition_point(|(first, _)| *first <= self.step).saturating_sub(1);
        self.points.drain(..keep);
        self.step = self.points.back().map_or(0, |(first, _)| *first);
    }
}

/// The largest number of ended threads that are remembered.
const MAX_ENDED: usize = 4096;

/// The calls of threads that have ended, by torch's number of the thread.
#[derive(Debug, Default)]
pub(super) struct EndedThreads(IntMap<u64, (i64, Breakpoints)>);

impl EndedThreads {
    /// Adds a thread that ended in `step`.
    pub(super) fn push(&mut self, torch_thread: u64, step: i64, breakpoints: Breakpoints) {
        if torch_thread != 0 && !breakpoints.points.is_empty() && self.0.len() < MAX_ENDED {
            self.0.insert(torch_thread, (step, breakpoints));
        }
    }

    pub(super) fn get(&self, torch_thread: u64) -> Option<&Breakpoints> {
        self.0.get(&torch_thread).map(|(_, breakpoints)| breakpoints)
    }

    /// Forgets threads that ended before `step`.
    pub(super) fn forget_before(&mut self, step: i64) {
        self.0.retain(|_, (ended, _)| *ended >= step);
    }
}

impl Persist for EndedThreads {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        Persist::get(from).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_belong_to_the_innermost_call() {
        let mut points = Breakpoints::default();
        assert_eq!(points.owner(3), NO_CALL);
        for (sequence, call) in [(10, 0), (10, 1), (14, 0), (14, 2), (14, 0), (20, NO_CALL)] {
            points.push(sequence, call);
        }
        let owners: Vec<CallId> = [9, 10, 13, 14, 19, 20, 500].map(|sequence| points.owner(sequence)).to_vec();
        assert_eq!(owners, [NO_CALL, 1, 1, 0, 0, NO_CALL, NO_CALL]);
        points.end_step();
        points.push(30, 7);
        points.end_step();
        assert_eq!(points.owner(31), 7);
        assert_eq!(points.owner(12), NO_CALL, "two steps back is forgotten");
    }
}
