//! Ranges that are open on a thread, in the order in which they began.

use std::cell::Cell;

/// Ranges that may be open on a thread; the oldest is given up when there would be more.
pub(super) const MAX_OPEN: usize = 32;

/// A range that is open.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenSpan {
    pub(super) key: u64,
    pub(super) begin: u64,
    pub(super) step: i64,
    /// The payload of its record.
    pub(super) payload: u64,
}

/// The ranges that are open on a thread.
#[derive(Debug)]
pub(crate) struct OpenSpans {
    pub(super) open: [Cell<OpenSpan>; MAX_OPEN],
    pub(super) count: Cell<usize>,
    pub(super) serial: Cell<u64>,
}

impl OpenSpans {
    pub(crate) const fn new() -> Self {
        Self {
            open: [const { Cell::new(OpenSpan { key: 0, begin: 0, step: 0, payload: 0 }) }; MAX_OPEN],
            count: Cell::new(0),
            serial: Cell::new(0),
        }
    }

    /// Marks all ranges as closed.
    pub(super) fn forget(&self) {
        self.count.set(0);
    }

    /// Removes the range at `index`.
    pub(super) fn remove(&self, index: usize) {
        let last = self.count.get() - 1;
        (index..last).for_each(|at| self.open[at].set(self.open[at + 1].get()));
        self.count.set(last);
    }
}
