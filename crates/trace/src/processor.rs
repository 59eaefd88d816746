//! Processor time of the thread that ends steps, and its waiting for a processor, from one end of a step to the next.

use super::clock::{SECOND, seconds};
use super::persist::persist;
use crate::record::RingRecord;

/// Times of a thread since it began, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct ThreadTimes {
    thread: usize,
    running: u64,
    /// Time ready without a processor; `u64::MAX`: not known.
    waiting: u64,
}

/// Times at the end of the previous step and of the step that ends now.
#[derive(Debug, Default)]
pub(super) struct ProcessorTimes {
    before: Option<ThreadTimes>,
    now: Option<ThreadTimes>,
}

persist!(ThreadTimes { thread, running, waiting });
persist!(ProcessorTimes { before, now });

impl ProcessorTimes {
    pub(super) fn note_times(&mut self, thread: usize, record: RingRecord) {
        self.now = Some(ThreadTimes { thread, running: record.a, waiting: record.b });
    }

    /// Ends a step. Returns the seconds that its thread ran, and was ready without a processor.
    pub(super) fn end_step(&mut self, thread: usize) -> (Option<f64>, Option<f64>) {
        let now = self.now.take().filter(|now| now.thread == thread);
        let before = std::mem::replace(&mut self.before, now);
        let Some((before, now)) = before.zip(now).filter(|(before, now)| before.thread == now.thread) else {
            return (None, None);
        };
        let seconds = |from: u64, to: u64| Some(exact(to.checked_sub(from)?));
        let is_known = before.waiting != u64::MAX && now.waiting != u64::MAX;
        let waiting = if is_known { seconds(before.waiting, now.waiting) } else { None };
        (seconds(before.running, now.running), waiting)
    }

    /// Forgets all times, because they don't belong to the steps to come.
    pub(super) fn skip(&mut self) {
        *self = Self::default();
    }
}

/// Seconds, rounded to the units that all times of steps have, so that sums over steps are exact.
fn exact(nanoseconds: u64) -> f64 {
    seconds((u128::from(nanoseconds) * u128::from(SECOND) / 1_000_000_000) as u64)
}
