//! What is done in one of many steps only, because it is dear: whether the step under way is one, and what it costs, spread
//! over all steps.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::policy;

/// It is done in one of so many steps that have detail.
const THINNER: u32 = 64;

/// Work that is done in one of many steps only, because it is expensive.
#[derive(Debug)]
pub(super) struct Thin {
    /// Which of them.
    place: u32,
    on: AtomicBool,
    /// Of the newest step that had it: one of how many; and ticks spent in it.
    stride: AtomicU32,
    spent: AtomicU64,
    /// Ticks a step, as that says.
    cost: AtomicU64,
}

impl Thin {
    /// In steps whose number, divided by how many it is one of, leaves `place`.
    pub(super) const fn new(place: u32) -> Self {
        Self {
            place,
            on: AtomicBool::new(false),
            stride: AtomicU32::new(1),
            spent: AtomicU64::new(0),
            cost: AtomicU64::new(0),
        }
    }

    /// Whether the step under way has it.
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Of the newest step that had it: one of how many.
    pub(super) fn stride(&self) -> u32 {
        self.stride.load(Ordering::Relaxed)
    }

    /// At the beginning of step `step`, where it is `wanted` or not: whether it is done from here on, if that changes.
    pub(super) fn begin_step(&self, step: i64, wanted: bool) -> Option<bool> {
        let stride = u32::from(policy::in_force().stride) * THINNER;
        let on = wanted && stride > 0 && step % i64::from(stride) == i64::from(self.place % stride);
        if self.is_on() == on {
            return None;
        }
        if on {
            self.stride.store(stride, Ordering::Relaxed);
            self.spent.store(0, Ordering::Relaxed);
        } else {
            let cost = self.spent.load(Ordering::Relaxed) / u64::from(self.stride());
            self.cost.store(cost, Ordering::Relaxed);
        }
        self.on.store(on, Ordering::Relaxed);
        Some(on)
    }

    /// It took so many ticks.
    #[inline(always)]
    pub(super) fn spend(&self, ticks: u64) {
        self.spent.fetch_add(ticks, Ordering::Relaxed);
    }

    /// What it costs a step, in ticks, where it is `wanted`.
    pub(super) fn cost(&self, wanted: bool) -> u64 {
        if wanted && policy::in_force().stride > 0 { self.cost.load(Ordering::Relaxed) } else { 0 }
    }

    /// Not any more, whatever the step.
    pub(super) fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    /// For tests: from here on, as in every step, or no more. Whether that changes.
    pub(super) fn force(&self, on: bool) -> bool {
        // Also where the step under way has it by its turn: what is forced is done in every step.
        self.stride.store(1, Ordering::Relaxed);
        self.on.swap(on, Ordering::Relaxed) != on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forced_is_one_of_one_also_in_a_step_whose_turn_it_was() {
        let thin = Thin::new(5);
        thin.on.store(true, Ordering::Relaxed);
        thin.stride.store(THINNER, Ordering::Relaxed);
        assert!(!thin.force(true));
        assert!(thin.is_on());
        assert_eq!(thin.stride(), 1);
    }
}
