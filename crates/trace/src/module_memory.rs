//! Device memory at calls of modules and steps of optimizers: the allocated bytes when one began and when it ended.

use super::call_memory::{EndedCallMemory, MeasuredCall};
use super::frame::ThreadFrame;
use super::thread::AnalysedThread;
use crate::payload::{AT_END, PEAK};
use crate::record::RingRecord;

impl AnalysedThread {
    /// Takes the allocator's values for the innermost call that is open.
    pub(super) fn allocated(&mut self, record: RingRecord) {
        // Calls within a compiled region are part of it.
        if matches!(self.frames.last(), None | Some(ThreadFrame::Module { hidden: true, .. })) {
            return;
        }
        let (depth, held) = (self.frames.len(), &mut self.held);
        let (device, at_end) = (record.payload() as u8, record.payload() & AT_END != 0);
        held.drop_deeper(depth);
        match held.begun.last_mut().filter(|call| call.depth == depth) {
            // There are several values at the end of an optimizer's step, and further ones of an optimizer within one: the
            // first beginning and the last end count.
            Some(call) if at_end && call.device == device => {
                call.end = Some([record.a, record.b, record.payload() >> PEAK]);
            }
            None if !at_end => {
                held.begun.push(MeasuredCall {
                    depth,
                    device,
                    allocated: record.a,
                    end: None,
                    within: 0,
                    unsure: false,
                });
            }
            // An end without a beginning: its change is somewhere in the call around it.
            None => held.doubt(),
            Some(_) => {}
        }
    }

    /// Takes the memory of the call that was just taken from the stack.
    pub(super) fn take_measured(&mut self) -> Option<EndedCallMemory> {
        let depth = self.frames.len() + 1;
        self.held.drop_deeper(depth);
        self.held.begun.last().is_some_and(|call| call.depth == depth).then(|| self.held.pop())?
    }
}
