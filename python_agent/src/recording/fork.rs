//! Forks: a forked child (a DataLoader worker) is not the training process, and everything of ours is switched off in it.
//! When it trains, it may become an agent of its own: see [`begin_in_child`].
//!
//! The child has copies of our locks and none of the threads that may hold them. So the thread that forks takes them
//! before the fork, and releases them on both sides: the child finds each lock free and its data complete. Each of these locks is
//! held for microseconds at a time, except for the loader's, for which a fork waits some milliseconds at most. The locks of the
//! analyser and the sinks are left out, because the background thread holds them for a whole drain, for which training must not
//! wait: a child makes them anew ([`Renewable`](crate::renewable::Renewable)) before it uses them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, Once};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::process_flag::{IN_CHILD, MAY_BEGIN, is_child, may_begin};
use super::{
    analyser_checkpoint, autograd_passes, boundary, capture, checkpoints, collectives, config, debug, device, drain,
    exceptions, first_use, forward, module_memory, module_names, operators, optimizer, overhead, pauses, processor,
    profiled_ranges, ranges_in_passes, ring, shared_memory, slot, tables, thread, torch_callbacks,
};
use crate::sampling::environment;
use crate::shared::{self, BOUNDARY_WANTED, ENABLED};

static ONCE: Once = Once::new();
/// How long a fork waits for a search of the C library's loader, and the pause between two looks. A search takes some 50 µs.
const MAX_LOADER_WAIT: Duration = Duration::from_millis(20);
const LOADER_PAUSE: Duration = Duration::from_micros(50);
/// How long the fork before this one waited for our locks, in nanoseconds.
static WAITED_NS: AtomicU64 = AtomicU64::new(0);

/// Every lock that a child may take, except those that are only taken with the GIL held, as the fork is. No thread that holds one
/// of them takes another, so any order is right if it is always the same: that of the fields.
struct ForkLocks {
    _registry: MutexGuard<'static, module_names::ModuleRegistry>,
    _operations: MutexGuard<'static, collectives::OperationRegistry>,
    _layers: MutexGuard<'static, BTreeMap<&'static str, String>>,
    _problem: MutexGuard<'static, String>,
    _beside: MutexGuard<'static, String>,
    _walker: MutexGuard<'static, Option<Py<PyAny>>>,
    _boundary: MutexGuard<'static, Option<Py<PyAny>>>,
    _first_use: MutexGuard<'static, Option<Py<PyAny>>>,
    _profiled: MutexGuard<'static, Vec<profiled_ranges::ProfiledRange>>,
    _callbacks: MutexGuard<'static, ()>,
    _saved: MutexGuard<'static, Vec<String>>,
    _config: MutexGuard<'static, config::ReceivedSettings>,
    _tables: MutexGuard<'static, tables::DeclaredTables>,
    _exceptions: MutexGuard<'static, exceptions::PendingExceptions>,
    _facts: MutexGuard<'static, environment::EnvironmentFacts>,
    _loader: Option<MutexGuard<'static, ()>>,
}

impl ForkLocks {
    fn take() -> Self {
        Self {
            _registry: shared::lock(&module_names::REGISTRY),
            _operations: shared::lock(&collectives::OPERATIONS),
            _layers: shared::lock(&shared::LAYERS),
            _problem: shared::lock(&shared::PROBLEM),
            _beside: shared::lock(&forward::BESIDE_MESSAGE),
            _walker: shared::lock(&module_names::WALKER),
            _boundary: shared::lock(&boundary::BOUNDARY),
            _first_use: shared::lock(&first_use::CALLBACK),
            _profiled: shared::lock(&profiled_ranges::PROFILED),
            _callbacks: shared::lock(&torch_callbacks::CHANGES),
            _saved: shared::lock(&checkpoints::TEXTS),
            _config: shared::lock(&config::SET),
            _tables: shared::lock(&tables::ALL),
            _exceptions: shared::lock(&exceptions::ALL),
            _facts: shared::lock(&environment::FACTS),
            _loader: loader_at_rest(),
        }
    }
}

/// Waits until no thread of ours has the C library's loader search, but not for long: that thread may wait for one that forks, as
/// the constructor of a library may.
fn loader_at_rest() -> Option<MutexGuard<'static, ()>> {
    let deadline = Instant::now() + MAX_LOADER_WAIT;
    loop {
        let held = shared::try_lock(&shared::LOADER);
        if held.is_some() || Instant::now() >= deadline {
            return held;
        }
        std::thread::sleep(LOADER_PAUSE);
    }
}

thread_local! {
    /// The locks, while this thread forks.
    static HELD: Cell<Option<ForkLocks>> = const { Cell::new(None) };
}

extern "C" fn before() {
    let begun = Instant::now();
    // A thread so near its end that its thread-local storage is gone forks without the locks.
    let _ = HELD.try_with(|held| held.set(Some(ForkLocks::take())));
    WAITED_NS.store(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| drop(held.take()));
}

extern "C" fn in_child() {
    // A process that a snippet forks is not part of the training.
    let recorded = ENABLED.swap(false, Ordering::Relaxed) && thread::records();
    // A child of a child that may still become an agent may become one too.
    MAY_BEGIN.store(recorded || is_child() && may_begin(), Ordering::Relaxed);
    IN_CHILD.store(true, Ordering::Relaxed);
    BOUNDARY_WANTED.store(false, Ordering::Relaxed);
    let _ = HELD.try_with(|held| drop(held.take()));
    thread::retire();
    shared_memory::leave_in_child();
}

/// Makes a forked child an agent: what the parent had recorded and not sent stays the parent's. False where this is no forked
/// child, or where the parent did not record. Recording is still off afterwards.
///
/// Python forks with the GIL held, so no other thread was in a call from Python that takes one of our locks.
pub(crate) fn begin_in_child() -> bool {
    if !MAY_BEGIN.swap(false, Ordering::Relaxed) {
        // It may have begun, and have been interrupted before it was connected.
        return !is_child();
    }
    ring::begin_anew();
    thread::begin_anew();
    boundary::begin_anew();
    config::begin_anew();
    optimizer::begin_anew();
    operators::begin_anew();
    module_memory::begin_anew();
    autograd_passes::begin_anew();
    ranges_in_passes::begin_anew();
    pauses::begin_anew();
    capture::begin_anew();
    device::begin_anew();
    processor::begin_anew();
    checkpoints::begin_anew();
    slot::begin_anew();
    overhead::begin_anew();
    drain::begin_anew();
    exceptions::begin_anew();
    analyser_checkpoint::begin_anew();
    debug::begin_anew();
    shared_memory::begin_anew();
    IN_CHILD.store(false, Ordering::Relaxed);
    true
}

/// Switches the agent off in children that this process forks from now on.
pub(super) fn watch() {
    ONCE.call_once(|| {
        // The data of a lock is made when it is first used: here, and not by a thread that a fork leaves behind.
        drop(ForkLocks::take());
        // SAFETY: the handlers take and release locks that no code under them asks for again, and store to atomics.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Seconds that the last fork waited for our locks.
#[pyfunction]
fn fork_waited() -> f64 {
    WAITED_NS.load(Ordering::Relaxed) as f64 * 1e-9
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(fork_waited, module)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Forks; the child takes every lock and ends. Returns whether it ended well; it is killed when it waits for a lock.
    fn child_finds_locks_free() -> bool {
        // SAFETY: between fork and _exit the child only takes locks and looks at atomics.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(20);
                drop(ForkLocks::take());
                libc::_exit(if is_child() && !ENABLED.load(Ordering::Relaxed) { 0 } else { 1 });
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0) == child && status == 0
        }
    }

    #[test]
    fn a_child_finds_our_locks_free() {
        watch();
        let over = Arc::new(AtomicBool::new(false));
        let holders: Vec<_> = (0..2)
            .map(|_| {
                let over = Arc::clone(&over);
                std::thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let problem = shared::lock(&shared::PROBLEM);
                        (0..10_000).for_each(|_| std::hint::spin_loop());
                        drop(problem);
                        let registry = shared::lock(&module_names::REGISTRY);
                        (0..10_000).for_each(|_| std::hint::spin_loop());
                        drop(registry);
                    }
                })
            })
            .collect();
        let good = (0..50).filter(|_| child_finds_locks_free()).count();
        over.store(true, Ordering::Relaxed);
        holders.into_iter().for_each(|holder| holder.join().expect("a holder that ends"));
        assert_eq!(good, 50);
        assert!(!is_child());
    }
}
