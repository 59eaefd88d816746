//! Whether this process is the one that records, or a forked child, which may become an agent of its own.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this is a forked child that is no agent.
pub(super) static IN_CHILD: AtomicBool = AtomicBool::new(false);
/// Whether this is a forked child of a process that recorded when it forked.
pub(super) static MAY_BEGIN: AtomicBool = AtomicBool::new(false);

/// Whether this process is a forked child that is no agent.
pub(super) fn is_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed)
}

/// Whether this forked child may become an agent itself.
#[inline]
pub(crate) fn may_begin() -> bool {
    MAY_BEGIN.load(Ordering::Relaxed)
}
