//! Counts forked children that train and are not recorded, because their parent was recorded when it forked them. They count
//! themselves in memory that they share with it, and it says so in `probe.agents.problem`.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use pyo3::prelude::*;

use super::program_errors;
use super::untraced::Untraced;
use crate::shared;

/// The children so far; null where there is no memory for it. Never freed.
static COUNT: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// How many of them were reported.
static REPORTED: AtomicU64 = AtomicU64::new(0);
/// Whether this process is a child of a process that was recorded when it forked.
static IS_ONE: AtomicBool = AtomicBool::new(false);
/// Whether it has trained.
static TRAINED: AtomicBool = AtomicBool::new(false);

/// Makes the memory that children share with this process. Called before it forks any that could count.
pub(super) fn begin() {
    // SAFETY: a new mapping of the system's choice; the result is checked.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<AtomicU64>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if memory != libc::MAP_FAILED {
        COUNT.store(memory.cast(), Ordering::Release);
    }
}

fn count() -> Option<&'static AtomicU64> {
    // SAFETY: null, or memory for an atomic that is never freed and that the kernel has filled with zeroes.
    unsafe { COUNT.load(Ordering::Acquire).as_ref() }
}

/// Notes in a forked child whether its parent was recorded.
pub(super) fn forked(parent_was_recorded: bool) {
    IS_ONE.fetch_or(parent_was_recorded, Ordering::Relaxed);
    TRAINED.store(false, Ordering::Relaxed);
}

/// Notes in a process that is not recorded that an optimizer steps.
#[inline]
pub(super) fn steps(py: Python<'_>) {
    if IS_ONE.load(Ordering::Relaxed) && !TRAINED.swap(true, Ordering::Relaxed) {
        say(py);
    }
}

#[cold]
fn say(py: Python<'_>) {
    let _untraced = Untraced::new(py);
    let is_first = count().is_none_or(|count| count.load(Ordering::Relaxed) == 0);
    let said = py
        .import("probe_agent.agent")
        .and_then(|agent| agent.call_method1("_trains_unrecorded", (is_first,)))
        .and_then(|counts| counts.extract::<bool>());
    if let (Ok(true), Some(count)) = (&said, count()) {
        count.fetch_add(1, Ordering::Relaxed);
    }
    program_errors::swallow(py, "a forked child that is not recorded", said.map(drop));
}

/// Reports, in the parent, children that have trained since the last report. For the background thread.
pub(super) fn report() {
    let children = count().map_or(0, |count| count.load(Ordering::Relaxed));
    if children > REPORTED.swap(children, Ordering::Relaxed) {
        let processes = if children == 1 { "process" } else { "processes" };
        shared::set_problem(format!(
            "{children} forked {processes} of this one trained without being recorded, because it was recorded itself when \
             it forked; use multiprocessing's start method spawn or forkserver, or fork before the first step"
        ));
    }
}

/// Begins anew in a forked child that becomes an agent: it counts its own children.
pub(super) fn begin_anew() {
    COUNT.store(std::ptr::null_mut(), Ordering::Release);
    REPORTED.store(0, Ordering::Relaxed);
    begin();
}
