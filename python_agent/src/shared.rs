//! The little state that recording, analysis, uplink and the Python half share: atomics, and locks that training's threads never
//! take.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

/// Whether recording is on. While it is off, as in a forked child and after detach, every hook passes straight through.
pub static ENABLED: AtomicBool = AtomicBool::new(false);

/// Number of finished optimizer steps.
pub static STEP: AtomicI64 = AtomicI64::new(0);

/// Whether the agent was put into a program that trained already, so that [`STEP`] counts from there on.
pub static ATTACHED: AtomicBool = AtomicBool::new(false);

/// Whether a snippet waits for the boundary between two steps. The boundary's fast path reads only this.
pub static BOUNDARY_WANTED: AtomicBool = AtomicBool::new(false);

/// Python's thread identifier (`threading.get_ident`) of the training thread: the one that last finished an optimizer
/// step, or, before there was one, called an outermost module. 0 when there was neither.
pub static TRAINING_THREAD: AtomicU64 = AtomicU64::new(0);

/// Which mechanism runs each layer: "forward" -> "tp_call".
pub static LAYERS: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());

/// The newest thing that went wrong, in words; empty when nothing did.
pub static PROBLEM: Mutex<String> = Mutex::new(String::new());

/// A problem is truncated to this (bytes, or characters of a Python string).
pub(crate) const MAX_PROBLEM_LENGTH: usize = 4096;

/// Locks `mutex`, also where a thread panicked while it held it: the data behind our locks is valid at every point.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Held while a thread of ours has the C library's loader search, for a library or for a module of its resolver. The loader does not
/// survive a fork in that state: the next `dlopen` of the child, as for an import, would crash.
pub static LOADER: Mutex<()> = Mutex::new(());

/// Locks `mutex`, if no thread holds it.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<std::sync::MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Sets the newest problem, which `probe.agents` and `probe_agent.status()` show and every report contains.
pub fn set_problem(problem: impl Into<String>) {
    let mut problem = problem.into();
    problem.truncate(problem.floor_char_boundary(MAX_PROBLEM_LENGTH));
    *lock(&PROBLEM) = problem;
}
