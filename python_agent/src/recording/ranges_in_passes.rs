//! Takes torch's callback of ranges out of the backward passes that can do without it.
//!
//! Torch sets a thread's state twice for each autograd node, and goes through all callbacks for each of its ten kinds of ranges
//! then: 900 instructions a node for one callback that is not called even once. So it is out while a pass of a step without
//! detail runs, and where recording is switched off. An optimizer that steps there is seen by torch's hooks of optimizers, and the
//! end of a collective by its future. Where the program was seen to open a range of its own during a pass, the callback stays in
//! from then on. To see that, it is in during the passes of one of [`LOOKS`] steps at least.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::autograd_passes::PASSES;
use super::policy::{self, IS_CAPTURED};
use super::thread::{RECORD, ThreadState};
use super::torch_callbacks::RANGE_CALLBACK;
use crate::shared::{self, ENABLED, STEP};

/// The passes of one of this many steps at least have the callback.
const LOOKS: u16 = 8;

/// Whether ranges are recorded by the callback at all.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
/// Open passes that do without the callback, on all threads.
static PASSES_WITHOUT: AtomicU32 = AtomicU32::new(0);
/// Whether the program has opened a range during a pass.
static IS_NEEDED: AtomicBool = AtomicBool::new(false);
/// Passes without the callback since the last one that had it.
static UNSEEN_PASSES: AtomicU64 = AtomicU64::new(0);

/// Puts the callback in.
pub(super) fn install() {
    IS_INSTALLED.store(true, Ordering::Relaxed);
    update();
}

/// Takes the callback out. Ranges that are open still end through it.
pub(super) fn uninstall() {
    IS_INSTALLED.store(false, Ordering::Relaxed);
    update();
}

/// Whether ranges are recorded by the callback, also while it is out.
pub(super) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}

/// Forgets in a forked child what the parent's other threads had open, and what its program did.
pub(super) fn begin_anew() {
    PASSES_WITHOUT.store(0, Ordering::Relaxed);
    IS_NEEDED.store(false, Ordering::Relaxed);
    UNSEEN_PASSES.store(0, Ordering::Relaxed);
    update();
}

/// Puts the callback in or takes it out, as the open passes want it.
pub(super) fn update() {
    RANGE_CALLBACK.change(|| {
        let is_left_out = PASSES_WITHOUT.load(Ordering::Relaxed) > 0 && !IS_CAPTURED.load(Ordering::Relaxed);
        IS_INSTALLED.load(Ordering::Relaxed) && !is_left_out
    });
}

/// Notes that a thread's outermost pass begins, in a step with detail or without.
#[inline]
pub(super) fn pass_begins(state: &ThreadState, has_detail: bool) {
    if !is_installed() || IS_NEEDED.load(Ordering::Relaxed) {
        return;
    }
    let is_enabled = ENABLED.load(Ordering::Relaxed);
    if state.mode.get() == RECORD && (!is_enabled || !has_detail && !looks()) {
        UNSEEN_PASSES.fetch_add(u64::from(is_enabled), Ordering::Relaxed);
        state.pass_without_ranges.set(true);
        PASSES_WITHOUT.fetch_add(1, Ordering::Relaxed);
        update();
    }
}

/// Whether passes of the current step have the callback, though it has no detail.
fn looks() -> bool {
    let has_few_details = !(1..=LOOKS).contains(&policy::in_force().stride);
    IS_CAPTURED.load(Ordering::Relaxed) || has_few_details && STEP.load(Ordering::Relaxed) % i64::from(LOOKS) == 0
}

/// Notes that a thread's outermost pass has ended.
#[inline]
pub(super) fn pass_ended(state: &ThreadState) {
    if state.pass_without_ranges.replace(false) {
        // In a forked child that has begun to count anew it is not counted.
        let _ = PASSES_WITHOUT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1));
        update();
    } else {
        // All of it was seen, and it had no range of the program's.
        UNSEEN_PASSES.store(0, Ordering::Relaxed);
    }
}

/// Notes that the program has opened a range.
#[inline]
pub(super) fn range_began() {
    if PASSES.load(Ordering::Relaxed) > 0 && !IS_NEEDED.load(Ordering::Relaxed) {
        need();
    }
}

#[cold]
fn need() {
    let unseen = UNSEEN_PASSES.load(Ordering::Relaxed);
    if !IS_NEEDED.swap(true, Ordering::Relaxed) && unseen > 0 {
        shared::set_problem(format!(
            "spans: the program opens ranges during backward passes; those in the {unseen} passes before step {} are not known",
            STEP.load(Ordering::Relaxed)
        ));
    }
}
