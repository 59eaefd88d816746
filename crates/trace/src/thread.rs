//! What is open on one thread: a stack, and to whom its time goes.

use super::calls::{Breakpoints, CallId, Calls};
use super::device::{Device, DeviceTime};
use super::keep::{Keep, Kept, keep};
use super::modules::IntMap;
use super::parts::{Part, Parts};
use super::validation::{Mark, Section};

/// Backward work of one module call in one pass.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) own: u64,
    pub(crate) begin: u64,
    pub(crate) device: DeviceTime,
}

/// A call of `backward()` that is open, or nodes that the engine runs on a thread of its own.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) begin: u64,
    /// Begun by a call on this thread, not by nodes that just came.
    pub(crate) explicit: bool,
    /// The thread whose call it is.
    pub(crate) of: usize,
    /// Before the first node.
    pub(crate) head: u64,
    /// Since the last node ended: the next one's start makes it its owner's.
    pub(crate) linger: u64,
    /// Device time since the last node ended.
    pub(super) device_linger: DeviceTime,
    /// Whether any record in it has a device's event.
    pub(super) on_device: bool,
    /// Owner of the last node.
    pub(crate) owner: Option<CallId>,
    pub(crate) work: IntMap<CallId, Work>,
    /// When the newest collective was issued in it.
    pub(crate) collective: Option<u64>,
    /// The newest call of each module, by address: only for the fallback that knows modules and not calls.
    pub(crate) newest: Option<IntMap<u64, CallId>>,
}

/// Something that is open.
#[derive(Debug)]
pub(crate) enum Frame {
    /// `hidden`: part of `call`, a compiled region, and not a call of its own.
    Module {
        call: CallId,
        address: u64,
        tainted: bool,
        hidden: bool,
    },
    Pass(Box<Pass>),
    Node {
        owner: CallId,
    },
    Optimizer {
        begin: u64,
        own: u64,
        class: u64,
        device: DeviceTime,
        device_begin: Device,
    },
    /// A batch was asked for at `begin`; the rest as in the record.
    Data {
        begin: u64,
        step: i64,
        class: u64,
        ready: u64,
        outstanding: u64,
    },
    Suspended,
    /// Something is saved.
    Checkpoint {
        begin: u64,
    },
}

/// A thread's state.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    /// Operating-system id.
    pub(crate) id: i64,
    pub(crate) frames: Vec<Frame>,
    /// How many of the frames are passes, and modules.
    pub(crate) passes: u32,
    pub(crate) modules: i32,
    pub(crate) breakpoints: Breakpoints,
    /// By which number autograd nodes that were made here say so; 0: not known.
    pub(crate) torch_thread: u64,
    pub(crate) parts: Parts,
    /// Calls of each module in the forward pass under way, and in the backward pass under way.
    pub(crate) called: IntMap<u32, i32>,
    pub(crate) recomputed: IntMap<u32, i32>,
    /// Intervals were lost in this step: what autograd did can't be told apart any more.
    pub(crate) lost: bool,
    /// Since when it has waited for a collective outside everything else.
    pub(crate) waiting_since: Option<u64>,
    /// When the wait that is open began, wherever it is.
    pub(crate) wait_began: Option<u64>,
    /// A synchronous operation whose completion only the end of the wait for it will show.
    pub(crate) shown_by_wait: Option<u64>,
    /// A device's memory, on its way.
    pub(super) memory: super::memory::Sample,
    /// A device's memory at the calls that are open.
    pub(super) held: super::module_memory::Held,
    /// What is under way of the loop; see there.
    pub(crate) section: Option<Section>,
    /// Where validation ended, while nothing has trained since.
    pub(crate) validated: Option<Mark>,
    last: u64,
    /// When the device came to the newest record that has an event.
    pub(super) device: Device,
}

keep!(Work { own, begin, device });
keep!(Pass { begin, explicit, of, head, linger, device_linger, on_device, owner, work, collective, newest });
keep!(Thread {
    id,
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
    last,
    device,
});

impl Keep for Frame {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Module { call, address, tainted, hidden } => {
                0_u8.put(to);
                (*call, *address).put(to);
                (*tainted, *hidden).put(to);
            }
            Self::Pass(pass) => {
                1_u8.put(to);
                pass.put(to);
            }
            Self::Node { owner } => {
                2_u8.put(to);
                owner.put(to);
            }
            Self::Optimizer { begin, own, class, device, device_begin } => {
                3_u8.put(to);
                [*begin, *own, *class].put(to);
                (*device, *device_begin).put(to);
            }
            Self::Data { begin, step, class, ready, outstanding } => {
                4_u8.put(to);
                [*begin, *class, *ready, *outstanding].put(to);
                step.put(to);
            }
            Self::Suspended => 5_u8.put(to),
            Self::Checkpoint { begin } => {
                6_u8.put(to);
                begin.put(to);
            }
        }
    }
    fn get(from: &mut Kept<'_>) -> Option<Self> {
        Some(match u8::get(from)? {
            0 => {
                let ((call, address), (tainted, hidden)) = (Keep::get(from)?, Keep::get(from)?);
                Self::Module { call, address, tainted, hidden }
            }
            1 => Self::Pass(Keep::get(from)?),
            2 => Self::Node { owner: Keep::get(from)? },
            3 => {
                let ([begin, own, class], (device, device_begin)) = (Keep::get(from)?, Keep::get(from)?);
                Self::Optimizer { begin, own, class, device, device_begin }
            }
            4 => {
                let ([begin, class, ready, outstanding], step) = (Keep::get(from)?, Keep::get(from)?);
                Self::Data { begin, step, class, ready, outstanding }
            }
            5 => Self::Suspended,
            6 => Self::Checkpoint { begin: Keep::get(from)? },
            _ => return None,
        })
    }
}

impl Thread {
    /// The time up to `now` goes to what is open.
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

    /// `now`, or the newest point in time that the thread has seen, should that be later.
    pub(crate) fn not_before(&self, now: u64) -> u64 {
        now.max(self.last)
    }

    /// Discards the time up to `now`: no interval gets it.
    pub(crate) fn skip(&mut self, now: u64) {
        if self.last != 0 {
            self.last = self.last.max(now);
        }
    }

    /// Gives `time` to what is open now, besides the time that passes.
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

    pub(super) fn part(&self) -> Part {
        match self.frames.last() {
            None => Part::Other,
            Some(Frame::Module { .. }) if self.passes == 0 => Part::Forward,
            Some(Frame::Module { .. } | Frame::Node { .. } | Frame::Pass(_)) => Part::Backward,
            Some(Frame::Optimizer { .. }) => Part::Optimizer,
            Some(Frame::Data { .. }) => Part::Data,
            Some(Frame::Suspended) => Part::Suspended,
            Some(Frame::Checkpoint { .. }) => Part::Checkpoint,
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

    /// Takes the innermost frame that `wanted` accepts, and whatever is open within it, whose ends are missing: how many
    /// those were. None, and nothing changes, where there is no such frame.
    pub(crate) fn take(&mut self, wanted: impl Fn(&Frame) -> bool) -> Option<(Frame, u64)> {
        let place = self.frames.iter().rposition(wanted)?;
        let mut within = 0;
        while self.frames.len() > place + 1 {
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

    /// Module intervals of this thread were lost: no own time is certain any more.
    pub(crate) fn taint(&mut self) {
        self.lost = true;
        for frame in &mut self.frames {
            if let Frame::Module { tainted, .. } = frame {
                *tainted = true;
            }
        }
    }
}
