//! The stack of frames that are open on one thread, and the frames that its time goes to.

use super::call_memory::CallMemory;
use super::calls::{Breakpoints, CallId, Calls};
use super::device::Device;
use super::frame::{Frame, Pass};
use super::memory_sample::MemorySample;
use super::modules::IntMap;
use super::persist::persist;
use super::section::{Mark, Section};
use super::step_parts::{Parts, RecordedPart};

/// A thread's state.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    /// Operating-system id.
    pub(crate) id: i64,
    /// Whether it has done anything but collect garbage. The agent's own threads only do that, also while training stands still.
    pub(crate) works: bool,
    pub(crate) frames: Vec<Frame>,
    /// Number of frames that are passes, and of those that are modules.
    pub(crate) passes: u32,
    pub(crate) modules: i32,
    pub(crate) breakpoints: Breakpoints,
    /// torch's number of the thread, which autograd nodes have that it made; 0: not known.
    pub(crate) torch_thread: u64,
    pub(crate) parts: Parts,
    /// Calls of each module in the current forward pass, and in the current backward pass.
    pub(crate) called: IntMap<u32, i32>,
    pub(crate) recomputed: IntMap<u32, i32>,
    /// Whether intervals were lost in this step, so that autograd's work can't be given to calls any more.
    pub(crate) lost: bool,
    /// Since when the thread has waited for a collective outside everything else.
    pub(crate) waiting_since: Option<u64>,
    /// When the wait that is open began, inside other frames too.
    pub(crate) wait_began: Option<u64>,
    /// A synchronous operation whose completion is only shown by the end of the wait for it.
    pub(crate) shown_by_wait: Option<u64>,
    /// A device's memory at the end of a step, while its records come.
    pub(super) memory: MemorySample,
    /// A device's memory at the calls that are open.
    pub(super) held: CallMemory,
    /// The current section, which is training or validation.
    pub(crate) section: Option<Section>,
    /// Where validation ended, while nothing has trained since.
    pub(crate) validated: Option<Mark>,
    /// The iterator whose batch was trained with last, while it has batches; 0 is none.
    pub(crate) trains_from: u64,
    last: u64,
    /// When the device reached the newest record that has an event.
    pub(super) device: Device,
}

persist!(Thread {
    id,
    works,
    frames,
    passes,
    modules,
    breakpoints,
    torch_thread,
    parts,
    called,
    recomputed,
    lost,
    waiting_since,
    wait_began,
    shown_by_wait,
    memory,
    held,
    section,
    validated,
    trains_from,
    last,
    device,
});

impl Thread {
    /// Gives the time up to `now` to what is open.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64, calls: &mut Calls) {
        let time = now.saturating_sub(self.last);
        // A first record has nothing before it.
        let time = if self.last == 0 { 0 } else { time };
        self.last = self.last.max(now);
        let part = self.part();
        self.parts.credit(part, time);
        match self.frames.last_mut() {
            Some(Frame::Module { call, .. }) => {
                if let Some(call) = calls.get_mut(*call) {
                    call.own += time;
                }
            }
            Some(Frame::Optimizer { own, .. }) => *own += time,
            Some(Frame::Pass(pass)) if pass.owner.is_some() => pass.linger += time,
            Some(Frame::Pass(pass)) => pass.head += time,
            Some(Frame::Node { owner }) => {
                let owner = *owner;
                if let Some(pass) = self.pass() {
                    pass.work.entry(owner).or_default().own += time;
                }
            }
            Some(Frame::Data { .. } | Frame::Suspended | Frame::Checkpoint { .. }) | None => {}
        }
    }

    /// `now`, or the thread's newest point in time if that is later.
    pub(crate) fn not_before(&self, now: u64) -> u64 {
        now.max(self.last)
    }

    /// Discards the time up to `now`: no interval gets it.
    pub(crate) fn skip(&mut self, now: u64) {
        if self.last != 0 {
            self.last = self.last.max(now);
        }
    }

    /// Gives `time` to what is open now, in addition to the time that passes.
    pub(crate) fn give(&mut self, time: u64, calls: &mut Calls) {
        match self.frames.last_mut() {
            Some(Frame::Module { call, .. }) => {
                if let Some(call) = calls.get_mut(*call) {
                    call.own += time;
                }
            }
            Some(Frame::Optimizer { own, .. }) => *own += time,
            Some(Frame::Node { owner }) => {
                let owner = *owner;
                if let Some(pass) = self.pass() {
                    pass.work.entry(owner).or_default().own += time;
                }
            }
            _ => {}
        }
    }

    pub(super) fn part(&self) -> RecordedPart {
        match self.frames.last() {
            None => RecordedPart::Other,
            Some(Frame::Module { .. }) if self.passes == 0 => RecordedPart::Forward,
            Some(Frame::Module { .. } | Frame::Node { .. } | Frame::Pass(_)) => RecordedPart::Backward,
            Some(Frame::Optimizer { .. }) => RecordedPart::Optimizer,
            Some(Frame::Data { .. }) => RecordedPart::Data,
            Some(Frame::Suspended) => RecordedPart::Suspended,
            Some(Frame::Checkpoint { .. }) => RecordedPart::Checkpoint,
        }
    }

    /// The innermost pass.
    pub(crate) fn pass(&mut self) -> Option<&mut Pass> {
        self.frames.iter_mut().rev().find_map(|frame| match frame {
            Frame::Pass(pass) => Some(&mut **pass),
            _ => None,
        })
    }

    /// The outermost pass.
    pub(crate) fn outermost_pass(&mut self) -> Option<&mut Pass> {
        self.frames.iter_mut().find_map(|frame| match frame {
            Frame::Pass(pass) => Some(&mut **pass),
            _ => None,
        })
    }

    pub(crate) fn push(&mut self, frame: Frame) {
        match frame {
            Frame::Pass(_) => self.passes += 1,
            Frame::Module { .. } => self.modules += 1,
            _ => {}
        }
        self.frames.push(frame);
    }

    pub(crate) fn pop(&mut self) -> Option<Frame> {
        let frame = self.frames.pop()?;
        match frame {
            Frame::Pass(_) => self.passes = self.passes.saturating_sub(1),
            Frame::Module { .. } => self.modules = (self.modules - 1).max(0),
            _ => {}
        }
        Some(frame)
    }

    /// Takes the innermost frame that `wanted` accepts, and all frames within it, whose ends are missing. Returns the frame and
    /// the number of those within it; None, without a change, where there is no such frame.
    pub(crate) fn take(&mut self, wanted: impl Fn(&Frame) -> bool) -> Option<(Frame, u64)> {
        let index = self.frames.iter().rposition(wanted)?;
        let mut within = 0;
        while self.frames.len() > index + 1 {
            self.pop();
            within += 1;
        }
        Some((self.pop()?, within))
    }

    /// The innermost module call that is open.
    pub(crate) fn innermost_call(&self) -> Option<CallId> {
        self.frames.iter().rev().find_map(|frame| match frame {
            Frame::Module { call, .. } => Some(*call),
            _ => None,
        })
    }

    /// The oldest module call that is open, and the address of its module.
    pub(crate) fn outermost_call(&self) -> Option<(CallId, u64)> {
        self.frames.iter().find_map(|frame| match frame {
            Frame::Module { call, address, .. } => Some((*call, *address)),
            _ => None,
        })
    }

    /// Whether nothing is open, so that no interval gets the thread's time.
    pub(crate) fn is_idle(&self) -> bool {
        self.frames.is_empty()
    }

    /// Marks open frames as uncertain, because module intervals of this thread were lost: no own time is certain any more.
    pub(crate) fn taint(&mut self) {
        self.lost = true;
        for frame in &mut self.frames {
            if let Frame::Module { tainted, .. } = frame {
                *tainted = true;
            }
        }
    }
}
