//! [`DoublingCount`]: when to look again at something that costs more than counting.

use std::sync::atomic::{AtomicU32, Ordering};

/// Counts events, and says which of them are to be looked at: the one with the number `first`, and then the first one each time
/// that the count has doubled.
pub(super) struct DoublingCount {
    count: AtomicU32,
    next: AtomicU32,
    first: u32,
}

impl DoublingCount {
    pub(super) const fn new(first: u32) -> Self {
        Self { count: AtomicU32::new(0), next: AtomicU32::new(first), first }
    }

    /// Counts an event. Returns the count if the event is to be looked at.
    pub(super) fn add(&self) -> Option<u32> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = count >= self.next.load(Ordering::Relaxed);
        if is_due {
            self.next.store(count.saturating_mul(2), Ordering::Relaxed);
        }
        is_due.then_some(count)
    }

    /// The number of events.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Begins anew.
    pub(super) fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.next.store(self.first, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_looked_at_from_the_first_on_and_at_twice_each_count() {
        let count = DoublingCount::new(3);
        let looked_at = || (0..30).filter_map(|_| count.add()).collect::<Vec<_>>();
        assert_eq!((looked_at(), count.count()), (vec![3, 6, 12, 24], 30));
        count.reset();
        assert_eq!((count.count(), looked_at()), (0, vec![3, 6, 12, 24]));
    }
}
