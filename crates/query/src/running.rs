//! How many of something are going on: scans, queries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A count of those.
#[derive(Debug, Clone, Default)]
pub(super) struct Running(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Guard(Running);

impl Running {
    /// One more.
    pub(super) fn begin(&self) -> Guard {
        self.0.fetch_add(1, Ordering::Relaxed);
        Guard(self.clone())
    }

    /// How many there are now.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
