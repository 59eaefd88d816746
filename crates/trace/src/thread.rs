//! The stack of frames that are open on one thread, and the frames that its time goes to.

use super::call_memory::CallMemory;
use super::calls::{Breakpoints, CallId, ModuleCalls};
use super::device::DeviceTimestamp;
use super::frame::{BackwardPass, ThreadFrame};
use super::memory_sample::MemorySample;
use super::modules::IntMap;
use super::persist::persist;
use super::section::{PartsSnapshot, ThreadSection};
use super::step_parts::{RecordedPart, StepParts};

/// A thread's state.
#[derive(Debug, Default)]
pub(crate) struct AnalysedThread {
    /// Operating-system id.
    pub(crate) id: i64,
    /// Whether it has done anything but collect garbage. The agent's own threads only do that, also while training stands still.
    pub(crate) works: bool,
    pub(crate) frames: Vec<ThreadFrame>,
    /// Number of frames that are passes, and of those that are modules.
    pub(crate) passes: u32,
    pub(crate) modules: i32,
    pub(crate) breakpoints: Breakpoints,
    /// torch's number of the thread, which autograd nodes have that it made; 0: not known.
    pub(crate) torch_thread: u64,
    pub(crate) parts: StepParts,
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
    pub(crate) section: Option<ThreadSection>,
    /// Where validation ended, while nothing has trained since.
    pub(crate) validated: Option<PartsSnapshot>,
    /// The iterator whose batch was trained with last, while it has batches; 0 is none.
    pub(crate) trains_from: u64,
    last: u64,
    /// When the device reached the newest record that has an event.
    pub(super) device: DeviceTimestamp,
}

persist!(AnalysedThread {
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

impl AnalysedThread {
    /// Gives the time up to `now` to what is open.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64, calls: &mut ModuleCalls) {
        let time = now.saturating_sub(self.last);
        // A first record has nothing before it.
        let time = if self.last == 0 { 0 } else { time };
        self.last = self.last.max(now);
        let part = self.part();
        self.parts.credit(part, time);
        match self.frames.last_mut() {
            Some(ThreadFrame::Module { call, .. }) => {
                if let Some(call) = calls.get_mut(*call) {
                    call.own += time;
                }
            }
            Some(ThreadFrame::Optimizer { own, .. }) => *own += time,
            Some(ThreadFrame::Pass(pass)) if pass.owner.is_some() => pass.linger += time,
            Some(ThreadFrame::Pass(pass)) => pass.head += time,
            Some(ThreadFrame::Node { owner }) => {
                let owner = *owner;
                if let Some(pass) = self.innermost_pass() {
                    pass.work.entry(owner).or_default().own += time;
                }
            }
            Some(ThreadFrame::Data { .. } | ThreadFrame::Suspended | ThreadFrame::Checkpoint { .. }) | None => {}
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
    pub(crate) fn add_time_to_open(&mut self, time: u64, calls: &mut ModuleCalls) {
        match self.frames.last_mut() {
            Some(ThreadFrame::Module { call, .. }) => {
                if let Some(call) = calls.get_mut(*call) {
                    call.own += time;
                }
            }
            Some(ThreadFrame::Optimizer { own, .. }) => *own += time,
            Some(ThreadFrame::Node { owner }) => {
                let owner = *owner;
                if let Some(pass) = self.innermost_pass() {
                    pass.work.entry(owner).or_default().own += time;
                }
            }
            _ => {}
        }
    }

    pub(super) fn part(&self) -> RecordedPart {
        match self.frames.last() {
            None => RecordedPart::Other,
            Some(ThreadFrame::Module { .. }) if self.passes == 0 => RecordedPart::Forward,
            Some(ThreadFrame::Module { .. } | ThreadFrame::Node { .. } | ThreadFrame::Pass(_)) => {
                RecordedPart::Backward
            }
            Some(ThreadFrame::Optimizer { .. }) => RecordedPart::Optimizer,
            Some(ThreadFrame::Data { .. }) => RecordedPart::Data,
            Some(ThreadFrame::Suspended) => RecordedPart::Suspended,
            Some(ThreadFrame::Checkpoint { .. }) => RecordedPart::Checkpoint,
        }
    }

    /// The innermost pass.
    pub(crate) fn innermost_pass(&mut self) -> Option<&mut BackwardPass> {
        self.frames.iter_mut().rev().find_map(|frame| match frame {
            ThreadFrame::Pass(pass) => Some(&mut **pass),
            _ => None,
        })
    }

    /// The outermost pass.
    pub(crate) fn outermost_pass(&mut self) -> Option<&mut BackwardPass> {
        self.frames.iter_mut().find_map(|frame| match frame {
            ThreadFrame::Pass(pass) => Some(&mut **pass),
            _ => None,
        })
    }

    pub(crate) fn push(&mut self, frame: ThreadFrame) {
        match frame {
            ThreadFrame::Pass(_) => self.passes += 1,
            ThreadFrame::Module { .. } => self.modules += 1,
            _ => {}
        }
        self.frames.push(frame);
    }

    pub(crate) fn pop(&mut self) -> Option<ThreadFrame> {
        let frame = self.frames.pop()?;
        match frame {
            ThreadFrame::Pass(_) => self.passes = self.passes.saturating_sub(1),
            ThreadFrame::Module { .. } => self.modules = (self.modules - 1).max(0),
            _ => {}
        }
        Some(frame)
    }

    /// Takes the innermost frame that `wanted` accepts, and all frames within it, whose ends are missing. Returns the frame and
    /// the number of those within it; None, without a change, where there is no such frame.
    pub(crate) fn take_frame(&mut self, wanted: impl Fn(&ThreadFrame) -> bool) -> Option<(ThreadFrame, u64)> {
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
            ThreadFrame::Module { call, .. } => Some(*call),
            _ => None,
        })
    }

    /// The oldest module call that is open, and the address of its module.
    pub(crate) fn outermost_call(&self) -> Option<(CallId, u64)> {
        self.frames.iter().find_map(|frame| match frame {
            ThreadFrame::Module { call, address, .. } => Some((*call, *address)),
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
            if let ThreadFrame::Module { tainted, .. } = frame {
                *tainted = true;
            }
        }
    }
}
