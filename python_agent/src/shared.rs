//! The little state that recording, analysis, uplink and the Python half share. All of it is atomics, or locks that
//! training's threads never take.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

/// Off in a forked child and after detach: every hook of ours passes straight through.
pub static ENABLED: AtomicBool = AtomicBool::new(false);

/// Optimizer steps finished.
pub static STEP: AtomicI64 = AtomicI64::new(0);

/// Whether the agent was put into a program that trained already, so that [`STEP`] counts from there on.
pub static ATTACHED: AtomicBool = AtomicBool::new(false);

/// Set when a snippet waits for the boundary between two steps; the boundary's fast path looks at this alone.
pub static BOUNDARY_WANTED: AtomicBool = AtomicBool::new(false);

/// Python's thread identifier (`threading.get_ident`) of the training thread: the one that last finished an optimizer
/// step, or, before there was one, called an outermost module. 0 when there was neither.
pub static TRAINING_THREAD: AtomicU64 = AtomicU64::new(0);

/// Which mechanism runs each layer: "forward" -> "tp_call".
pub static LAYERS: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());

/// The newest thing that went wrong, in words; empty when nothing did.
pub static PROBLEM: Mutex<String> = Mutex::new(String::new());

/// What went wrong is cut here (bytes, or characters of Python's).
pub(crate) const MAX_PROBLEM_LENGTH: usize = 4096;

/// Locks `mutex` whatever a thread that held it did: what we keep in locks stays valid at every point.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Keeps what went wrong where `probe.agents` and `probe_agent.status()` show it. Every report has it.
pub fn set_problem(problem: impl Into<String>) {
    let mut problem = problem.into();
    problem.truncate(problem.floor_char_boundary(MAX_PROBLEM_LENGTH));
    *lock(&PROBLEM) = problem;
}
