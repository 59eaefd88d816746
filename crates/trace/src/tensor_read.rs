//! The host's reads of tensors' values in the current step.

use probe_proto::tables::sync_points;

use super::persist::{Persist, PersistedBytes};

/// All reads of one kind at one line of the program in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorRead {
    /// Operator, line, stride and part of the step; device.
    pub(super) key: (u64, u8),
    pub(super) thread: usize,
    pub(super) row: sync_points::Row,
}

impl Persist for TensorRead {
    fn put(&self, to: &mut Vec<u8>) {
        let row = self.row;
        self.key.put(to);
        self.thread.put(to);
        (row.step, row.ts).put(to);
        row.stride.put(to);
        (row.operation, row.device).put(to);
        row.count.put(to);
        row.waited.put(to);
        (row.file, row.line).put(to);
        row.thread.put(to);
        row.part.put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        let (key, thread) = (Persist::get(from)?, Persist::get(from)?);
        let ((step, ts), stride) = (Persist::get(from)?, Persist::get(from)?);
        let ((operation, device), count) = (Persist::get(from)?, Persist::get(from)?);
        let (waited, (file, line)) = (Persist::get(from)?, Persist::get(from)?);
        let (os_thread, part) = (Persist::get(from)?, Persist::get(from)?);
        let row = sync_points::Row {
            step,
            stride,
            ts,
            operation,
            device,
            count,
            waited,
            part,
            file,
            line,
            thread: os_thread,
        };
        Some(Self { key, thread, row })
    }
}
