//! Counts scans or queries that are running.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of scans or queries that are running.
#[derive(Debug, Clone, Default)]
pub(super) struct RunningCount(Arc<AtomicUsize>);

/// Counts one scan or query as running until it is dropped.
#[derive(Debug)]
pub(super) struct RunningGuard(RunningCount);

impl RunningCount {
    /// Counts one more as running, until the guard is dropped.
    pub(super) fn begin(&self) -> RunningGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        RunningGuard(self.clone())
    }

    /// The number that is running now.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
