//! A forked child (a DataLoader worker) is not the training process: everything of ours is switched off in it.

use std::sync::Once;
use std::sync::atomic::Ordering;

use crate::shared::ENABLED;

static ONCE: Once = Once::new();

extern "C" fn in_child() {
    ENABLED.store(false, Ordering::Relaxed);
}

/// Switches the agent off in children that this process forks from now on.
pub(super) fn watch() {
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed between fork and exec.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
