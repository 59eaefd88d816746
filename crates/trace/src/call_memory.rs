//! Device memory at the calls of modules and steps of optimizers that are open on a thread.
//!
//! A call's own change is its change without those of the calls within it, as for own time. So it is known only where those
//! are.

use super::persist::persist;
use crate::payload::MB;

/// A call whose beginning was measured and that has not ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasuredCall {
    /// Number of frames that were open, its own included.
    pub(super) depth: usize,
    pub(super) device: u8,
    pub(super) allocated: u64,
    /// The newest values of its end: bytes allocated, reserved, and the peak.
    pub(super) end: Option<[u64; 3]>,
    /// Change in the calls within it, in bytes.
    pub(super) within: i64,
    /// Whether one of those calls was not measured to its end.
    pub(super) unsure: bool,
}

/// A thread's open calls, the outermost first.
#[derive(Debug, Default)]
pub(super) struct CallMemory {
    pub(super) begun: Vec<MeasuredCall>,
}

/// The memory of a call that has ended (MB).
#[derive(Debug, Clone, Copy)]
pub(super) struct EndedCallMemory {
    device: u8,
    pub(super) allocated: f64,
    pub(super) own_delta: Option<f64>,
    pub(super) peak: f64,
    pub(super) reserved: f64,
}

persist!(MeasuredCall { depth, device, allocated, end, within, unsure });
persist!(CallMemory { begun });

impl EndedCallMemory {
    /// Whether the values are of the device with this name.
    pub(super) fn is_of(&self, device: Option<&str>) -> bool {
        device.and_then(|name| name.strip_prefix("cuda:")).and_then(|number| number.parse().ok()) == Some(self.device)
    }
}

impl CallMemory {
    /// Takes the innermost call out, and adds its change to the call around it.
    pub(super) fn pop(&mut self) -> Option<EndedCallMemory> {
        let call = self.begun.pop()?;
        let delta = call.end.map(|[allocated, ..]| allocated.wrapping_sub(call.allocated) as i64);
        if let Some(around) = self.begun.last_mut() {
            match delta.filter(|_| around.device == call.device) {
                Some(delta) => around.within = around.within.wrapping_add(delta),
                None => around.unsure = true,
            }
        }
        let ([allocated, reserved, peak], delta) = call.end.zip(delta)?;
        Some(EndedCallMemory {
            device: call.device,
            allocated: allocated as f64 / MB,
            own_delta: (!call.unsure).then(|| delta.wrapping_sub(call.within) as f64 / MB),
            peak: peak as f64 / MB,
            reserved: reserved as f64 / MB,
        })
    }

    /// Marks the change within the innermost call as not known.
    pub(super) fn doubt(&mut self) {
        if let Some(call) = self.begun.last_mut() {
            call.unsure = true;
        }
    }

    /// Takes out calls that are deeper than `depth`, whose ends never came.
    pub(super) fn drop_deeper(&mut self, depth: usize) {
        while self.begun.last().is_some_and(|call| call.depth > depth) {
            self.pop();
        }
    }
}
