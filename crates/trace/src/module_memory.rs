//! Device memory at calls of modules and steps of optimizers: what was allocated when one began and when it ended.
//!
//! A call's own change is what is left of it when the changes of the calls within it are taken away, as own time is. So
//! it is known only where those are.

use super::keep::keep;
use super::thread::{Frame, Thread};
use crate::payload::{AT_END, MB, PEAK};
use crate::record::Record;

/// A call whose beginning was measured and that has not ended.
#[derive(Debug, Clone, Copy)]
struct Begun {
    /// How many frames were open, its own included.
    depth: usize,
    device: u8,
    allocated: u64,
    /// What was said of its end so far: bytes allocated, reserved, and the peak.
    end: Option<[u64; 3]>,
    /// Change over the calls within it, in bytes.
    within: i64,
    /// One of these was not measured to its end.
    unsure: bool,
}

/// What is known of a thread's open calls, the outermost first.
#[derive(Debug, Default)]
pub(super) struct Held {
    begun: Vec<Begun>,
}

/// What was measured of a call that has ended (MB).
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    device: u8,
    pub(super) allocated: f64,
    pub(super) own_delta: Option<f64>,
    pub(super) peak: f64,
    pub(super) reserved: f64,
}

keep!(Begun { depth, device, allocated, end, within, unsure });
keep!(Held { begun });

impl Measured {
    /// Whether it says something of the device with this name.
    pub(super) fn is_of(&self, device: Option<&str>) -> bool {
        device.and_then(|name| name.strip_prefix("cuda:")).and_then(|number| number.parse().ok()) == Some(self.device)
    }
}

impl Held {
    /// Takes the innermost call out, whose change belongs to the one around it as well.
    fn pop(&mut self) -> Option<Measured> {
        let call = self.begun.pop()?;
        let delta = call.end.map(|[allocated, ..]| allocated.wrapping_sub(call.allocated) as i64);
        if let Some(around) = self.begun.last_mut() {
            match delta.filter(|_| around.device == call.device) {
                Some(delta) => around.within = around.within.wrapping_add(delta),
                None => around.unsure = true,
            }
        }
        let ([allocated, reserved, peak], delta) = call.end.zip(delta)?;
        Some(Measured {
            device: call.device,
            allocated: allocated as f64 / MB,
            own_delta: (!call.unsure).then(|| delta.wrapping_sub(call.within) as f64 / MB),
            peak: peak as f64 / MB,
            reserved: reserved as f64 / MB,
        })
    }

    /// What changed within the innermost call is not known.
    fn doubt(&mut self) {
        if let Some(call) = self.begun.last_mut() {
            call.unsure = true;
        }
    }

    /// Takes out calls that are deeper than `depth`: their ends never came.
    fn cut(&mut self, depth: usize) {
        while self.begun.last().is_some_and(|call| call.depth > depth) {
            self.pop();
        }
    }
}

impl Thread {
    /// The allocator was asked for the innermost call that is open.
    pub(super) fn allocated(&mut self, record: Record) {
        // What is within a compiled region is part of it.
        if matches!(self.frames.last(), None | Some(Frame::Module { hidden: true, .. })) {
            return;
        }
        let (depth, held) = (self.frames.len(), &mut self.held);
        let (device, at_end) = (record.payload() as u8, record.payload() & AT_END != 0);
        held.cut(depth);
        match held.begun.last_mut().filter(|call| call.depth == depth) {
            // Several are asked at the end of an optimizer's step, and an optimizer within one asks again: the first
            // beginning and the last end are what counts.
            Some(call) if at_end && call.device == device => {
                call.end = Some([record.a, record.b, record.payload() >> PEAK]);
            }
            None if !at_end => {
                held.begun.push(Begun { depth, device, allocated: record.a, end: None, within: 0, unsure: false });
            }
            // An end without a beginning: what it changed is somewhere in the call around it.
            None => held.doubt(),
            Some(_) => {}
        }
    }

    /// What was measured of the call that was just taken from the stack.
    pub(super) fn take_measured(&mut self) -> Option<Measured> {
        let depth = self.frames.len() + 1;
        self.held.cut(depth);
        self.held.begun.last().is_some_and(|call| call.depth == depth).then(|| self.held.pop())?
    }
}
