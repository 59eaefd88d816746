//! What is known of autograd's passes and nodes on all threads.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Whether nodes are recorded by torch's callbacks (not by the fallback, nor off).
pub(super) static NODES: AtomicBool = AtomicBool::new(false);
/// Whether the callback of nodes is switched on: in steps without detail torch takes none of the ways to it, which cost
/// more than what we do there.
pub(super) static WATCHED: AtomicBool = AtomicBool::new(true);
/// Calls of `backward()` that are open, on all threads.
pub(super) static PASSES: AtomicU32 = AtomicU32::new(0);
/// Whether a node has ever been seen.
pub(super) static NODE_SEEN: AtomicBool = AtomicBool::new(false);
/// First and last node of the pass that is open, on threads that autograd owns (device threads); 0: none.
pub(super) static FIRST_ELSEWHERE: AtomicU64 = AtomicU64::new(0);
/// See there.
pub(super) static LAST_ELSEWHERE: AtomicU64 = AtomicU64::new(0);
