//! Says why a program has no steps. Its calls of modules look like training, and neither a backward pass nor an optimizer ends a
//! step: that is so with derivatives in forward mode alone, and where a program infers as it would train. Or there is an optimizer
//! that never steps: beside backward passes, or beside calls that only evaluate after an attach (a server may keep the optimizer
//! of its checkpoint).

use std::sync::atomic::{AtomicBool, Ordering};

use super::doubling_count::DoublingCount;
use crate::shared;

/// Such calls, while no step has ended.
static CALLS: DoublingCount = DoublingCount::new(FIRST_LOOK);
/// The number of [`CALLS`] from which on the agent looks for an optimizer that may still step: more than the calls whose losses a program sums up before its first backward pass.
const FIRST_LOOK: u32 = 32;
/// The number of backward passes from which on a problem is reported where no optimizer has stepped although there is one. Few
/// programs accumulate the gradients of so many passes for a step.
const MANY_PASSES: u32 = 128;
/// The number of calls that only evaluate from which on a problem is reported after an attach.
const MANY_CALLS: u32 = 64;
/// Whether the problem was reported.
static SAID: AtomicBool = AtomicBool::new(false);

/// How the problem begins. `probe diagnose` and `probe compare` look for it.
const BEGINNING: &str = "no step has ended";

/// Notes an outermost call of a module in training mode, with gradients on, before the first step and the first backward pass.
/// `may_step` says whether there is an optimizer that may still step.
pub(super) fn note_training_call(may_step: impl FnOnce() -> bool) {
    let Some(count) = CALLS.add() else { return };
    if !SAID.load(Ordering::Relaxed) && !may_step() {
        say(&format!(
            ": {count} calls of a module in training mode had no backward pass, and no optimizer of torch is there. Where \
             derivatives are in forward mode, probe_agent.step() says where a step ends; where nothing trains, eval() or \
             no_grad() makes each call a step"
        ));
    }
}

/// Notes that there have been this many backward passes before the first step, while there is an optimizer that may still step.
pub(super) fn note_backward_passes(count: u32) {
    // Without that layer steps of optimizers are not seen.
    let is_off = shared::lock(&shared::LAYERS).get("optimizer").is_some_and(|mechanism| mechanism == "off");
    if count >= MANY_PASSES && !is_off {
        say(&format!(
            ": there were {count} backward passes, and an optimizer of torch that has not stepped. If the program updates \
             its parameters itself, probe_agent.step() says where a step ends"
        ));
    }
}

/// Notes that there have been this many calls since an attach that only evaluate, while there is an optimizer that may still step.
pub(super) fn evaluated(count: u32) {
    if count >= MANY_CALLS {
        say(&format!(
            " since the attach: there were {count} calls of a model that do not train, and an optimizer of torch that has not \
             stepped. If nothing trains here, probe_agent.step() says where a step ends"
        ));
    }
}

/// Reports the problem, of which `why` is the end, unless one is reported already.
fn say(why: &str) {
    if !SAID.swap(true, Ordering::Relaxed) {
        shared::set_problem(format!("{BEGINNING}{why}"));
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
