//! A forked child (a DataLoader worker) is not the training process: everything of ours is switched off in it.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::shared::ENABLED;

static ONCE: Once = Once::new();
static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is a forked child of the one that recorded. A lock of ours may then have been held, at the
/// fork, by a thread that is not here: it is never let go, and must not be asked for.
pub(super) fn is_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    IN_CHILD.store(true, Ordering::Relaxed);
    ENABLED.store(false, Ordering::Relaxed);
}

/// Switches the agent off in children that this process forks from now on.
pub(super) fn watch() {
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to atomics, which is allowed between fork and exec.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
