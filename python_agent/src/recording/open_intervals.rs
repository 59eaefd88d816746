//! Which intervals are open on a thread, and whether their beginnings were recorded.

use std::cell::Cell;

/// A stack of bits for open intervals: the beginning of an interval notes whether it was recorded, for its end.
#[derive(Debug)]
pub(super) struct OpenIntervals {
    depth: Cell<u32>,
    bits: Cell<u64>,
}

impl OpenIntervals {
    pub(super) const fn new() -> Self {
        Self { depth: Cell::new(0), bits: Cell::new(0) }
    }

    /// Closes all.
    pub(super) fn forget(&self) {
        self.depth.set(0);
    }

    /// How many intervals are open.
    #[inline(always)]
    pub(super) fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// Opens an interval; `record` says whether it was recorded and is not asked where the stack is full.
    #[inline(always)]
    pub(super) fn open(&self, record: impl FnOnce() -> bool) {
        let depth = self.depth.get();
        if depth < 64 {
            let bit = u64::from(record()) << depth;
            self.bits.set(self.bits.get() & !(1 << depth) | bit);
        }
        self.depth.set(depth + 1);
    }

    /// Closes the innermost interval. Returns whether its beginning was recorded.
    #[inline(always)]
    pub(super) fn close(&self) -> bool {
        let Some(depth) = self.depth.get().checked_sub(1) else { return false };
        self.depth.set(depth);
        depth < 64 && self.bits.get() >> depth & 1 == 1
    }
}
