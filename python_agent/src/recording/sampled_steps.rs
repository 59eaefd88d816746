//! Work that is done in one of many steps only, because it is expensive: whether the current step is one of them, and what the
//! work costs, spread over all steps.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::clock::ticks;
use super::policy;

/// Stride of the work, among steps that have detail.
pub(super) const THINNER: u32 = 64;
/// In this many first steps sparse detail does not make the work rarer: otherwise a run of a few hundred steps had it once.
const FIRST_STEPS: i64 = 256;
/// For this many steps the work is done at the first stride whatever it costs, because that is not known yet.
const UNPRICED_STEPS: i64 = 64;
/// After that it is done at the first stride where it takes at most one part in this many of the steps' time.
const AFFORDABLE: u64 = 400;

/// The stride of the steps that do the work; 0: none does. `detail_stride` is that of steps with detail.
fn usual_stride(step: i64, detail_stride: u16, first_stride: u32, is_affordable: bool) -> u32 {
    if !(0..FIRST_STEPS).contains(&step) {
        THINNER * u32::from(detail_stride)
    } else if step < UNPRICED_STEPS || is_affordable {
        first_stride * u32::from(detail_stride.min(1))
    } else {
        THINNER * u32::from(detail_stride.min(1))
    }
}

/// The steps, one of many, in which expensive work is done.
#[derive(Debug)]
pub(super) struct SampledSteps {
    /// The work is done in steps whose number modulo the usual stride is this.
    remainder: u32,
    /// The stride in the first steps, where the work is cheap: a divisor of [`THINNER`].
    first_stride: u32,
    /// How many of the next steps do the work because it was requested.
    next: AtomicU32,
    /// The newest step that did the work because it was requested; -1: none has.
    requested: AtomicI64,
    on: AtomicBool,
    /// Number of steps for which the newest step that did the work stands.
    stride: AtomicU32,
    /// Ticks that the newest step that did the work has spent on it.
    spent: AtomicU64,
    /// When the newest step that did the work began, in ticks.
    began: AtomicU64,
    /// Ticks a step, computed from `spent` and `stride`.
    cost: AtomicU64,
    /// The shortest of the first steps that did the work, in ticks.
    shortest: AtomicU64,
    /// The least that one of them spent on it, in ticks.
    least_spent: AtomicU64,
}

impl SampledSteps {
    /// Work for the steps whose number modulo the usual stride is `remainder`. The stride of the first steps is `first_stride`.
    pub(super) const fn new(remainder: u32, first_stride: u32) -> Self {
        Self {
            remainder,
            first_stride,
            next: AtomicU32::new(0),
            requested: AtomicI64::new(-1),
            on: AtomicBool::new(false),
            stride: AtomicU32::new(1),
            spent: AtomicU64::new(0),
            began: AtomicU64::new(0),
            cost: AtomicU64::new(0),
            shortest: AtomicU64::new(u64::MAX),
            least_spent: AtomicU64::new(u64::MAX),
        }
    }

    /// Forgets all steps, in a forked child that counts its own. Returns whether the work was being done.
    pub(super) fn forget(&self) -> bool {
        self.next.store(0, Ordering::Relaxed);
        self.requested.store(-1, Ordering::Relaxed);
        self.stride.store(1, Ordering::Relaxed);
        self.shortest.store(u64::MAX, Ordering::Relaxed);
        self.least_spent.store(u64::MAX, Ordering::Relaxed);
        self.on.swap(false, Ordering::Relaxed)
    }

    /// Requests the work in the next `steps` steps.
    pub(super) fn next(&self, steps: u32) {
        self.next.store(steps, Ordering::Relaxed);
    }

    /// Whether the current step does the work.
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// How many steps the newest step that did the work stands for.
    pub(super) fn stride(&self) -> u32 {
        self.stride.load(Ordering::Relaxed)
    }

    /// Decides at the beginning of step `step` whether that does the work; never where it is not `wanted`. Returns the decision
    /// if it differs from the one before. It is called when the step before ends, and again when the model is called.
    pub(super) fn begin_step(&self, step: i64, wanted: bool) -> Option<bool> {
        let usual = usual_stride(step, policy::in_force().stride, self.first_stride, self.is_affordable());
        let requested = wanted && self.is_requested(step);
        let its_turn = wanted && usual > 0 && step % i64::from(usual) == i64::from(self.remainder % usual);
        // A requested step stands for itself alone.
        let stride = if requested { 1 } else { usual };
        let (was_on, on) = (self.is_on(), requested || its_turn);
        let changes = was_on != on || on && self.stride() != stride;
        if was_on && changes && self.stride() > 1 {
            let (spent, mut stride) = (self.spent.load(Ordering::Relaxed), self.stride());
            // A row must stand for as many steps as it says: so the stride does not change again once it depends on the cost.
            if step < UNPRICED_STEPS {
                let whole = ticks().saturating_sub(self.began.load(Ordering::Relaxed));
                self.shortest.fetch_min(whole, Ordering::Relaxed);
                self.least_spent.fetch_min(spent, Ordering::Relaxed);
                // The governor decides for the steps to come.
                stride = if self.is_affordable() { stride } else { THINNER };
            }
            self.cost.store(spent / u64::from(stride), Ordering::Relaxed);
        }
        if on && changes {
            self.stride.store(stride, Ordering::Relaxed);
            self.spent.store(0, Ordering::Relaxed);
            self.began.store(ticks(), Ordering::Relaxed);
        }
        self.on.store(on, Ordering::Relaxed);
        (was_on != on).then_some(on)
    }

    /// Whether the work is cheap, by the first steps that did it. One of them may be long for another reason.
    fn is_affordable(&self) -> bool {
        let spent = self.least_spent.load(Ordering::Relaxed) / u64::from(self.first_stride);
        spent.saturating_mul(AFFORDABLE) <= self.shortest.load(Ordering::Relaxed)
    }

    /// Whether the step that begins is a requested one.
    fn is_requested(&self, step: i64) -> bool {
        if self.requested.load(Ordering::Relaxed) == step {
            return true;
        }
        let requested = self.next.load(Ordering::Relaxed) > 0;
        if requested {
            self.next.fetch_sub(1, Ordering::Relaxed);
            self.requested.store(step, Ordering::Relaxed);
        }
        requested
    }

    /// Adds ticks that the work took in the current step.
    #[inline(always)]
    pub(super) fn spend(&self, ticks: u64) {
        self.spent.fetch_add(ticks, Ordering::Relaxed);
    }

    /// What the work costs a step on average, in ticks; 0 where it is not `wanted`.
    pub(super) fn cost(&self, wanted: bool) -> u64 {
        if wanted && policy::in_force().stride > 0 { self.cost.load(Ordering::Relaxed) } else { 0 }
    }

    /// Ends the work in the current step.
    pub(super) fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    /// For tests: begins or ends the work now, for the rest of step `step`. Returns whether that is a change.
    pub(super) fn force(&self, on: bool, step: i64) -> bool {
        self.requested.store(if on { step } else { -1 }, Ordering::Relaxed);
        // Forced work stands for the step alone, also where it is the step's turn.
        self.stride.store(1, Ordering::Relaxed);
        self.on.swap(on, Ordering::Relaxed) != on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_are_asked_for_have_it_and_are_one_of_one() {
        let thin = SampledSteps::new(5, THINNER);
        let seen = |step: i64, wanted: bool| {
            let change = thin.begin_step(step, wanted);
            thin.spend(640);
            (change, thin.is_on(), thin.stride())
        };
        assert_eq!(seen(0, true), (None, false, 1));
        thin.next(2);
        assert_eq!(seen(1, false), (None, false, 1), "a layer that is off stays off");
        assert_eq!(seen(4, true), (Some(true), true, 1));
        assert_eq!(seen(4, true), (None, true, 1), "the model is called: it is the same step");
        // Its own turn, and asked for.
        assert_eq!(seen(5, true), (None, true, 1));
        assert_eq!(seen(6, true), (Some(false), false, 1));
        assert_eq!(thin.cost(true), 0, "what is asked for says nothing of the usual cost");
        assert_eq!(seen(69, true), (Some(true), true, 64));
        assert_eq!(seen(70, true), (Some(false), false, 64));
        assert_eq!(thin.cost(true), 10);
    }

    #[test]
    fn sparse_detail_makes_it_rarer_after_the_first_steps() {
        let watched = |detail_stride| -> Vec<i64> {
            let is_watched = |step: &i64| {
                let stride = i64::from(usual_stride(*step, detail_stride, THINNER, false));
                stride > 0 && step % stride == 10
            };
            (0..600).filter(is_watched).collect()
        };
        assert!(watched(0).is_empty());
        assert_eq!(watched(1), [10, 74, 138, 202, 266, 330, 394, 458, 522, 586]);
        assert_eq!(watched(4), [10, 74, 138, 202, 266, 522]);
    }

    #[test]
    fn the_first_steps_have_it_more_often_where_it_is_cheap() {
        // Each step that does the work takes a millisecond at least, of which the work is a share.
        let strides = |share_of_step: f64| -> Vec<(i64, u32)> {
            let often = SampledSteps::new(10, 16);
            let mut seen = Vec::new();
            for step in 0..400 {
                often.begin_step(step, true);
                if often.is_on() {
                    let began = ticks();
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    let spent = ((ticks() - began) as f64 * share_of_step) as u64;
                    // One of them saves a checkpoint, too.
                    if step == 26 {
                        std::thread::sleep(std::time::Duration::from_millis(50));
                    }
                    often.spend(spent);
                    seen.push((step, often.stride()));
                }
            }
            seen
        };
        let (cheap, dear) = (strides(0.02), strides(0.5));
        let first = [(10, 16), (26, 16), (42, 16), (58, 16)];
        assert_eq!(dear, [&first[..], &[(74, 64), (138, 64), (202, 64), (266, 64), (330, 64), (394, 64)]].concat());
        let often: Vec<(i64, u32)> = (0..16).map(|block| (10 + 16 * block, 16)).collect();
        assert_eq!(cheap, [&often[..], &[(266, 64), (330, 64), (394, 64)]].concat());
    }

    #[test]
    fn what_is_forced_is_one_of_one_also_in_a_step_whose_turn_it_was() {
        let thin = SampledSteps::new(5, THINNER);
        thin.on.store(true, Ordering::Relaxed);
        thin.stride.store(THINNER, Ordering::Relaxed);
        assert!(!thin.force(true, 5));
        assert!(thin.is_on());
        assert_eq!(thin.stride(), 1);
    }
}
