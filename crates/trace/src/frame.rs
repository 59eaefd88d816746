//! Frames that can be open on a thread: calls of modules, backward passes and their nodes, optimizers, batches.

use super::calls::CallId;
use super::device::{DeviceTime, DeviceTimestamp};
use super::modules::IntMap;
use super::persist::{Persist, PersistedBytes, persist};

/// Backward work of one module call in one pass.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BackwardWork {
    pub(crate) own: u64,
    pub(crate) begin: u64,
    pub(crate) device: DeviceTime,
}

/// A call of `backward()` that is open, or nodes that the engine runs on a thread of its own.
#[derive(Debug, Default)]
pub(crate) struct BackwardPass {
    pub(crate) begin: u64,
    /// Whether a call on this thread began the pass, and not nodes alone.
    pub(crate) explicit: bool,
    /// Number of the thread that called.
    pub(crate) caller: usize,
    /// Time before the first node.
    pub(crate) head: u64,
    /// Time since the last node ended. It goes to that node's owner when the next node starts.
    pub(crate) linger: u64,
    /// Device time since the last node ended.
    pub(crate) device_linger: DeviceTime,
    /// Whether any record in it has a device's event.
    pub(crate) on_device: bool,
    /// Owner of the last node.
    pub(crate) owner: Option<CallId>,
    pub(crate) work: IntMap<CallId, BackwardWork>,
    /// When the newest collective was issued in the pass.
    pub(crate) collective: Option<u64>,
    /// The newest call of each module, by address. Only for the fallback, which knows modules and not calls.
    pub(crate) newest: Option<IntMap<u64, CallId>>,
}

/// A frame that is open on a thread.
#[derive(Debug)]
pub(crate) enum ThreadFrame {
    /// A module's call. `hidden`: part of `call`, a compiled region, and not a call of its own.
    Module {
        call: CallId,
        address: u64,
        tainted: bool,
        hidden: bool,
    },
    Pass(Box<BackwardPass>),
    Node {
        owner: CallId,
    },
    Optimizer {
        begin: u64,
        own: u64,
        class: u64,
        device: DeviceTime,
        device_begin: DeviceTimestamp,
    },
    /// A batch that was asked for at `begin`. The other fields are those of the record.
    Data {
        begin: u64,
        step: i64,
        class: u64,
        ready: u64,
        outstanding: u64,
        /// The worker that loaded it, and the nanoseconds that it took.
        loaded: Option<(u64, u64)>,
        /// The bits of the share of it that is padding.
        padding: Option<u64>,
    },
    Suspended,
    /// A checkpoint is being saved.
    Checkpoint {
        begin: u64,
    },
}

persist!(BackwardWork { own, begin, device });
persist!(BackwardPass {
    begin,
    explicit,
    caller,
    head,
    linger,
    device_linger,
    on_device,
    owner,
    work,
    collective,
    newest
});

impl Persist for ThreadFrame {
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
            Self::Data { begin, step, class, ready, outstanding, loaded, padding } => {
                4_u8.put(to);
                [*begin, *class, *ready, *outstanding].put(to);
                (*step, *loaded).put(to);
                padding.put(to);
            }
            Self::Suspended => 5_u8.put(to),
            Self::Checkpoint { begin } => {
                6_u8.put(to);
                begin.put(to);
            }
        }
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        Some(match u8::get(from)? {
            0 => {
                let ((call, address), (tainted, hidden)) = (Persist::get(from)?, Persist::get(from)?);
                Self::Module { call, address, tainted, hidden }
            }
            1 => Self::Pass(Persist::get(from)?),
            2 => Self::Node { owner: Persist::get(from)? },
            3 => {
                let ([begin, own, class], (device, device_begin)) = (Persist::get(from)?, Persist::get(from)?);
                Self::Optimizer { begin, own, class, device, device_begin }
            }
            4 => {
                let ([begin, class, ready, outstanding], (step, loaded)) = (Persist::get(from)?, Persist::get(from)?);
                Self::Data { begin, step, class, ready, outstanding, loaded, padding: Persist::get(from)? }
            }
            5 => Self::Suspended,
            6 => Self::Checkpoint { begin: Persist::get(from)? },
            _ => return None,
        })
    }
}
