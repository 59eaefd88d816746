//! Says why a program has no steps: its calls of modules look like training, and neither a backward pass nor an optimizer ends a
//! step. That is so with derivatives in forward mode alone, and where a program infers as it would train.

use std::sync::atomic::{AtomicBool, Ordering};

use super::doubling_count::DoublingCount;
use crate::shared;

/// Such calls, while no step has ended.
static CALLS: DoublingCount = DoublingCount::new(FIRST_LOOK);
/// The number of [`CALLS`] from which on the agent looks for an optimizer that may still step: more than the calls whose losses a program sums up before its first backward pass.
const FIRST_LOOK: u32 = 32;
/// Whether the problem was reported.
static SAID: AtomicBool = AtomicBool::new(false);

/// How the problem begins. `probe diagnose` and `probe compare` look for it.
const BEGINNING: &str = "no step has ended";

/// Notes an outermost call of a module in training mode, with gradients on, before the first step and the first backward pass.
/// `may_step` says whether there is an optimizer that may still step.
pub(super) fn called(may_step: impl FnOnce() -> bool) {
    let Some(count) = CALLS.add() else { return };
    if !SAID.load(Ordering::Relaxed) && !may_step() {
        SAID.store(true, Ordering::Relaxed);
        shared::set_problem(format!(
            "{BEGINNING}: {count} calls of a module in training mode had no backward pass, and no optimizer of torch is \
             there. Where derivatives are in forward mode, probe_agent.step() says where a step ends; where nothing trains, \
             eval() or no_grad() makes each call a step"
        ));
    }
}

/// Takes back what was said, when a step has ended after all.
#[inline]
pub(super) fn step_ended() {
    if SAID.load(Ordering::Relaxed) {
        take_back();
    }
}

#[cold]
fn take_back() {
    SAID.store(false, Ordering::Relaxed);
    let mut problem = shared::lock(&shared::PROBLEM);
    if problem.starts_with(BEGINNING) {
        problem.clear();
    }
}

/// Begins anew in a forked child that becomes an agent.
pub(super) fn forget() {
    CALLS.reset();
    SAID.store(false, Ordering::Relaxed);
}
