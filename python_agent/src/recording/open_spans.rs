//! Ranges that are open on a thread, in the order in which they began.

use std::cell::Cell;

/// Ranges open on a thread; the oldest is given up when there are more.
pub(super) const OPEN: usize = 32;

/// A range that is open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub(super) key: u64,
    pub(super) begin: u64,
    pub(super) step: i64,
    /// As the record's payload.
    pub(super) said: u64,
}

/// The ranges that are open on a thread.
#[derive(Debug)]
pub(crate) struct OpenSpans {
    pub(super) open: [Cell<Open>; OPEN],
    pub(super) count: Cell<usize>,
    pub(super) serial: Cell<u64>,
}

impl OpenSpans {
    pub(crate) const fn new() -> Self {
        Self {
            open: [const { Cell::new(Open { key: 0, begin: 0, step: 0, said: 0 }) }; OPEN],
            count: Cell::new(0),
            serial: Cell::new(0),
        }
    }

    /// None is open.
    pub(super) fn forget(&self) {
        self.count.set(0);
    }

    /// Takes one out, wherever it is.
    pub(super) fn remove(&self, place: usize) {
        let last = self.count.get() - 1;
        (place..last).for_each(|place| self.open[place].set(self.open[place + 1].get()));
        self.count.set(last);
    }
}
