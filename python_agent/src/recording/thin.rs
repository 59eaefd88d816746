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
    /// So many of the next steps have it, whoever's turn it is.
    next: AtomicU32,
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
            next: AtomicU32::new(0),
            on: AtomicBool::new(false),
            stride: AtomicU32::new(1),
            spent: AtomicU64::new(0),
            cost: AtomicU64::new(0),
        }
    }

    /// So many of the next steps have it.
    pub(super) fn next(&self, steps: u32) {
        self.next.store(steps, Ordering::Relaxed);
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
        let usual = u32::from(policy::in_force().stride) * THINNER;
        let asked = wanted && self.take_asked();
        let its_turn = wanted && usual > 0 && step % i64::from(usual) == i64::from(self.place % usual);
        // Steps that are asked for are one of one each.
        let stride = if asked { 1 } else { usual };
        let (was_on, on) = (self.is_on(), asked || its_turn);
        let changes = was_on != on || on && self.stride() != stride;
        if was_on && changes && self.stride() > 1 {
            let cost = self.spent.load(Ordering::Relaxed) / u64::from(self.stride());
            self.cost.store(cost, Ordering::Relaxed);
        }
        if on && changes {
            self.stride.store(stride, Ordering::Relaxed);
            self.spent.store(0, Ordering::Relaxed);
        }
        self.on.store(on, Ordering::Relaxed);
        (was_on != on).then_some(on)
    }

    /// Whether the step that begins is one of those that are asked for.
    fn take_asked(&self) -> bool {
        let asked = self.next.load(Ordering::Relaxed) > 0;
        if asked {
            self.next.fetch_sub(1, Ordering::Relaxed);
        }
        asked
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
    fn steps_that_are_asked_for_have_it_and_are_one_of_one() {
        let thin = Thin::new(5);
        let seen = |step: i64, wanted: bool| {
            let change = thin.begin_step(step, wanted);
            thin.spend(640);
            (change, thin.is_on(), thin.stride())
        };
        assert_eq!(seen(0, true), (None, false, 1));
        thin.next(2);
        assert_eq!(seen(1, false), (None, false, 1), "a layer that is off stays off");
        assert_eq!(seen(4, true), (Some(true), true, 1));
        // Its own turn, and asked for.
        assert_eq!(seen(5, true), (None, true, 1));
        assert_eq!(seen(6, true), (Some(false), false, 1));
        assert_eq!(thin.cost(true), 0, "what is asked for says nothing of the usual cost");
        assert_eq!(seen(69, true), (Some(true), true, 64));
        assert_eq!(seen(70, true), (Some(false), false, 64));
        assert_eq!(thin.cost(true), 10);
    }

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
