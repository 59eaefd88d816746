//! Whether this process is the one that records, or a forked child, which may become an agent of its own.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this is a forked child of the process that recorded.
pub(super) static IN_CHILD: AtomicBool = AtomicBool::new(false);
/// Whether this process is an agent: its uplink was started, or its rings were read.
pub(super) static BEGUN: AtomicBool = AtomicBool::new(false);
/// Whether this is a forked child of a process that was no agent: its rings had not been read, and no thread of ours was lost in
/// the fork.
pub(super) static MAY_BEGIN: AtomicBool = AtomicBool::new(false);

/// Whether this process is a forked child of the one that recorded.
pub(super) fn is_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed)
}

/// Marks this process as an agent from now on: the rings that its children inherit may be half read.
pub(crate) fn begun() {
    BEGUN.store(true, Ordering::Relaxed);
}

/// Whether this forked child may become an agent itself.
#[inline]
pub(crate) fn may_begin() -> bool {
    MAY_BEGIN.load(Ordering::Relaxed)
}
