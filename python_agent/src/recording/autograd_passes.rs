//! State of autograd's passes and nodes on all threads.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Whether nodes are recorded by torch's callbacks (not by the fallback, nor off).
pub(super) static NODES: AtomicBool = AtomicBool::new(false);
/// Whether the callback of nodes is put in. It is not in steps without detail, because torch's call of it costs more than the
/// callback itself.
pub(super) static WATCHED: AtomicBool = AtomicBool::new(true);
/// Calls of `backward()` that are open, on all threads.
pub(super) static PASSES: AtomicU32 = AtomicU32::new(0);
/// Whether a node has ever been seen.
pub(super) static NODE_SEEN: AtomicBool = AtomicBool::new(false);
/// When the first node of the open pass began on a thread that autograd owns (device threads), in ticks; 0: none.
pub(super) static FIRST_ELSEWHERE: AtomicU64 = AtomicU64::new(0);
/// When the last node of the open pass ended on a thread that autograd owns (device threads), in ticks; 0: none.
pub(super) static LAST_ELSEWHERE: AtomicU64 = AtomicU64::new(0);

/// Forgets in a forked child the passes of the parent's other threads.
pub(super) fn begin_anew() {
    PASSES.store(0, Ordering::Relaxed);
    FIRST_ELSEWHERE.store(0, Ordering::Relaxed);
    LAST_ELSEWHERE.store(0, Ordering::Relaxed);
}
