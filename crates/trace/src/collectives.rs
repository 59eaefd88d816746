//! Collectives: from the issue of each to its completion, and one row each.

use std::cmp::Reverse;

use probe_proto::v1;

use super::analyser::Analyser;
use super::clock::SECOND;
use super::device::DeviceTimestamp;
use super::kind::NCCL_TRACE;
use super::pending_collectives::{
    GroupProgress, IssuedOperation, OperationEnd, PendingOperations, is_message, whole_number,
};
use super::symbol_lookup::{CollectiveOperation, SymbolLookup};
use crate::record::{RecordKind, RingRecord};
use crate::row_buffer::RowBuffer;

/// An operation whose completion has not been seen for this long, while later ones of its group were completed, gets its
/// row as issued. Without a later one it may be what a rank hangs in, and is reported as pending.
const GIVE_UP: u64 = 120 * SECOND;
/// The time after which an operation is reported as pending.
pub(super) const PENDING: u64 = SECOND;
/// The largest number of pending operations of a group that are reported.
const REPORTED: usize = 16;
/// The largest number of groups that are kept.
const MAX_GROUPS: usize = 1024;
/// The largest number of operations under way. Beyond it new ones are not kept.
const WAITING: usize = 1 << 16;

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn collective(
        &mut self,
        number: usize,
        kind: RecordKind,
        record: RingRecord,
        device: DeviceTimestamp,
        sink: &mut RowBuffer,
    ) {
        match kind {
            RecordKind::Issue => self.issue(number, record, device, sink),
            RecordKind::Started => {
                self.operations.handles.insert(record.b, record.a);
            }
            RecordKind::Finished => {
                if let Some(key) = self.operations.handles.remove(&record.a) {
                    let end = self.end_if_known(number, key, record.ts);
                    self.complete(key, end, record.payload() != 0, sink);
                }
            }
            // A stream waits for the operation, so the return of the call does not mean its end.
            RecordKind::Done if record.payload() == 0 && self.is_on_stream(record.a) => {
                if !self.is_shown_by_wait(record.a) {
                    self.complete(record.a, OperationEnd::NotSeen, false, sink);
                }
            }
            RecordKind::Done => self.complete(record.a, OperationEnd::At(record.ts), record.payload() != 0, sink),
            _ if self.is_shown_by_wait(record.a) => self.threads[number].shown_by_wait = Some(record.a),
            _ => self.complete(record.a, OperationEnd::NotSeen, false, sink),
        }
    }

    /// When an operation ended that a thread reports as done at `now`. gloo's point-to-point operations are reported when they
    /// are waited for: if the wait began long after the issue, they may have been done for any time.
    fn end_if_known(&self, number: usize, key: u64, now: u64) -> OperationEnd {
        let (Some(began), Some(issued)) = (self.threads[number].wait_began, self.operations.waiting.get(&key)) else {
            return OperationEnd::At(now);
        };
        let (unwatched, whole) = (began.saturating_sub(issued.at), now.saturating_sub(issued.at));
        if unwatched <= whole / 10 { OperationEnd::At(now) } else { OperationEnd::Unknown }
    }

    /// Whether the wait of the issuing thread ends when the operation does: it is synchronous, and the backend blocks the
    /// thread, or its stream on a device whose times are known.
    fn is_shown_by_wait(&self, key: u64) -> bool {
        self.operations.under_way(key).is_some_and(|(issued, operation)| {
            matches!(issued.device, DeviceTimestamp::At { .. }) || operation.backend == "gloo" && !operation.async_op
        })
    }

    /// Whether the operation runs on a device, where the host does not see its end.
    fn is_on_stream(&self, key: u64) -> bool {
        self.operations.under_way(key).is_some_and(|(_, operation)| operation.backend == "nccl")
    }

    /// When an operation ended whose wait ended at `now`, and on the device at `device`. None: it has not ended yet.
    fn end_of_wait(&self, key: u64, now: u64, has_event: bool, device: DeviceTimestamp) -> Option<OperationEnd> {
        let issued = self.operations.waiting.get(&key)?;
        if issued.device == DeviceTimestamp::None {
            return Some(OperationEnd::At(now));
        }
        match device.since(issued.device) {
            Some(took) => Some(OperationEnd::After(took)),
            None if has_event => None,
            None => Some(OperationEnd::NotSeen),
        }
    }

    fn issue(&mut self, number: usize, record: RingRecord, device: DeviceTimestamp, sink: &mut RowBuffer) {
        if let Some(key) = self.threads[number].shown_by_wait.take() {
            self.complete(key, OperationEnd::NotSeen, false, sink);
        }
        let id = record.payload() & 0xff_ffff;
        if !self.operations.kinds.contains_key(&id) {
            let Some(operation) = self.names.operation(id) else { return };
            self.operations.kinds.insert(id, operation);
        }
        let kind = self.operations.kinds.get(&id);
        let is_async = kind.is_some_and(|operation| operation.async_op);
        let on_stream = kind.is_some_and(|operation| !operation.async_op && operation.backend == "nccl");
        let inside = if self.threads[number].passes > 0 { Some(number) } else { self.explicit_pass() };
        if let Some(pass) = inside.and_then(|thread| self.threads[thread].outermost_pass()) {
            pass.collective = Some(record.ts);
        }
        let mut seq = (record.payload() >> 24) as i64;
        let mut collective = None;
        if let Some(kind) = self.operations.kinds.get(&id) {
            let group = self.operations.groups.entry(kind.group_id).or_insert_with(|| GroupProgress {
                name: kind.group_name.clone(),
                size: kind.group_size,
                issued: seq,
                completed: -1,
                at: record.ts,
                recorded: 0,
                messages: 0,
            });
            seq = whole_number(seq, group.issued);
            group.issued = group.issued.max(seq);
            group.at = group.at.max(record.ts);
            group.recorded += 1;
            if is_message(&kind.name) {
                group.messages += 1;
            } else {
                // An operation that is fed after a later one has an unknown number of collectives before it.
                collective = group.collectives().filter(|_| seq == group.issued).map(|count| count - 1);
            }
            self.operations.keep_groups(MAX_GROUPS);
        }
        if self.operations.waiting.len() >= WAITING {
            sink.dropped(NCCL_TRACE, "too many under way", 1);
            return;
        }
        let issued = IssuedOperation {
            thread: number,
            at: record.ts,
            step: self.step,
            seq,
            kind: id,
            bytes: record.b,
            collective,
            waited_for: !is_async && self.threads[number].is_idle(),
            device: if on_stream { device } else { DeviceTimestamp::None },
        };
        self.threads[number].waiting_since = issued.waited_for.then_some(record.ts);
        if matches!(issued.device, DeviceTimestamp::At { .. }) {
            // Patched functions wait before their return is recorded.
            self.threads[number].shown_by_wait = Some(record.a);
        }
        self.operations.waiting.insert(record.a, issued);
    }

    /// Begins or ends the thread's wait for an operation, which is communication time where it is not inside anything else. The
    /// wait for a synchronous operation lasts from its issue until the thread runs again, not only until the operation is
    /// complete.
    pub(super) fn wait(
        &mut self,
        number: usize,
        kind: RecordKind,
        record: RingRecord,
        device: DeviceTimestamp,
        sink: &mut RowBuffer,
    ) {
        let thread = &mut self.threads[number];
        let now = record.ts;
        if kind == RecordKind::WaitEnd {
            thread.wait_began = None;
            if let Some(begin) = thread.waiting_since.take() {
                thread.parts.wait(begin, now);
            }
            if let Some(key) = thread.shown_by_wait.take()
                && let Some(end) = self.end_of_wait(key, now, record.payload() == 1, device)
            {
                self.complete(key, end, false, sink);
            }
        } else {
            thread.wait_began = Some(now);
            if thread.is_idle() {
                thread.waiting_since.get_or_insert(now);
            }
        }
    }

    fn complete(&mut self, key: u64, end: OperationEnd, failed: bool, sink: &mut RowBuffer) {
        let Some(issued) = self.operations.waiting.remove(&key) else { return };
        if !matches!(end, OperationEnd::NotSeen)
            && let Some(kind) = self.operations.kinds.get(&issued.kind)
            && let Some(group) = self.operations.groups.get_mut(&kind.group_id)
        {
            group.completed = group.completed.max(issued.seq);
        }
        if let (true, OperationEnd::At(end), Some(thread)) =
            (issued.waited_for, end, self.threads.get_mut(issued.thread))
            && issued.step == self.step
        {
            thread.parts.wait(issued.at, end);
        }
        self.push_operation(&issued, end, failed, sink);
    }

    /// Sets, for the next report, how far this process is on each group, and the operations issued earlier than `before` that
    /// are under way. The groups with such operations come first, and then those that were used last: of too many the collector
    /// takes the first.
    pub(super) fn report_groups(&self, before: u64, sink: &mut RowBuffer) {
        sink.groups.clear();
        let Some(clock) = &self.clock else { return };
        let PendingOperations { waiting, kinds, groups, .. } = &self.operations;
        let mut late: Vec<(&IssuedOperation, &CollectiveOperation)> = waiting
            .values()
            .filter(|issued| issued.at < before)
            .filter_map(|i| Some((i, kinds.get(&i.kind)?)))
            .collect();
        late.sort_unstable_by_key(|(issued, _)| issued.seq);
        let mut groups: Vec<_> = groups.iter().collect();
        let is_late = |number: u32| late.iter().any(|(_, operation)| operation.group_id == number);
        groups.sort_by_cached_key(|(number, group)| (!is_late(**number), Reverse(group.at), group.name.clone()));
        for (number, group) in groups {
            let mine = late.iter().filter(|(_, operation)| operation.group_id == *number).take(REPORTED);
            let pending = mine.map(|(issued, operation)| v1::PendingOperation {
                seq: issued.seq,
                operation_type: operation.name.to_string(),
                bytes: i64::try_from(issued.bytes).unwrap_or(i64::MAX),
                dtype: operation.dtype.clone(),
                async_op: operation.async_op,
                backend: operation.backend.clone(),
                step: issued.step,
                unix_ns: clock.unix_ns(issued.at),
                collective: issued.collective,
            });
            sink.groups.push(v1::GroupState {
                name: group.name.clone(),
                size: group.size,
                issued: group.issued,
                pending: pending.collect(),
                has_messages: group.messages > 0,
                collectives: group.collectives(),
            });
        }
    }

    /// Adds rows, as issued, for operations that have been under way since long before `now`, or for all at the `last` drain.
    pub(super) fn give_up_collectives(&mut self, now: u64, last: bool, sink: &mut RowBuffer) {
        if self.operations.waiting.is_empty() {
            return;
        }
        let before = if last { u64::MAX } else { now.saturating_sub(GIVE_UP) };
        let operations = &self.operations;
        let is_late = |issued: &IssuedOperation| {
            let group = operations.kinds.get(&issued.kind).and_then(|kind| operations.groups.get(&kind.group_id));
            issued.at < before && (last || group.is_none_or(|group| issued.seq < group.completed))
        };
        let late = operations.waiting.iter().filter(|(_, issued)| is_late(issued));
        let late: Vec<u64> = late.map(|(key, _)| *key).collect();
        for key in late {
            self.complete(key, OperationEnd::NotSeen, false, sink);
        }
        if self.operations.waiting.is_empty() {
            self.operations.handles.clear();
        }
    }
}
