//! What recording an event costs the thread that records it.
//!
//! While a device's queue is full, every launch waits for room in it, also that of an event. Without the event, the program would
//! wait as long at its own next launch. So the cost is the smallest of all medians of a few consecutive samples: in the first
//! steps of a program the queue is not full yet.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of samples of which a median is taken.
const SAMPLES: usize = 15;

/// Measured cost of recording an event, in ticks; 0 before the first sample.
pub(super) struct EventCost {
    newest: [AtomicU64; SAMPLES],
    count: AtomicUsize,
    smallest: AtomicU64,
}

impl EventCost {
    pub(super) const fn new() -> Self {
        Self { newest: [const { AtomicU64::new(0) }; SAMPLES], count: AtomicUsize::new(0), smallest: AtomicU64::new(0) }
    }

    /// Adds a sample: an event took `ticks` ticks. Two threads at once may falsify a median, and nothing else.
    pub(super) fn add_sample(&self, ticks: u64) {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        self.newest[number % SAMPLES].store(ticks, Ordering::Relaxed);
        if number < SAMPLES {
            self.smallest.store(ticks, Ordering::Relaxed);
        }
        if number % SAMPLES == SAMPLES - 1 {
            let mut sorted: [u64; SAMPLES] = std::array::from_fn(|index| self.newest[index].load(Ordering::Relaxed));
            sorted.sort_unstable();
            let median = sorted[SAMPLES / 2];
            if number < SAMPLES {
                self.smallest.store(median, Ordering::Relaxed);
            } else {
                self.smallest.fetch_min(median, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn ticks(&self) -> u64 {
        self.smallest.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_room_in_a_queue_is_no_cost() {
        let cost = EventCost::new();
        assert_eq!(cost.ticks(), 0);
        cost.add_sample(90_000);
        assert_eq!(cost.ticks(), 90_000, "all that is known");
        // Some of the first events make the driver do something for the first time.
        (1..SAMPLES).for_each(|number| cost.add_sample(if number < 5 { 50_000 } else { 300 + number as u64 }));
        let first = cost.ticks();
        assert!((300..320).contains(&first), "{first}");
        (0..1000 * SAMPLES).for_each(|_| cost.add_sample(40_000));
        assert_eq!(cost.ticks(), first);
        (0..SAMPLES).for_each(|_| cost.add_sample(200));
        assert_eq!(cost.ticks(), 200);
    }
}
