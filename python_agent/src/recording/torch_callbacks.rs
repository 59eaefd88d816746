//! torch's RecordFunction callbacks: added, switched and removed, whatever they do.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pyo3::prelude::*;

use super::autograd_passes::{NODES, WATCHED};
use super::libtorch::{missing, symbol};

const SCOPES: usize = 10;
pub(super) const FUNCTION: usize = 0;
pub(super) const BACKWARD_FUNCTION: usize = 1;
const USER_SCOPE: usize = 7;

/// `at::RecordFunctionCallback` of torch 2.5 to 2.15, as tests/torch_layout.cpp compares it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Callback {
    start: *const c_void,
    end: *const c_void,
    probability: f64,
    scopes: [bool; SCOPES],
    needs_inputs: bool,
    needs_outputs: bool,
    needs_ids: bool,
}

/// `at::addGlobalCallback` and `at::removeCallback`; null before they were looked up.
static ADD: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static REMOVE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// That of autograd nodes.
pub(super) static NODE_CALLBACK: GlobalCallback = GlobalCallback::new(BACKWARD_FUNCTION, false);
/// That of ranges.
pub(super) static RANGE_CALLBACK: GlobalCallback = GlobalCallback::new(USER_SCOPE, false);
/// That of operators.
pub(super) static OPERATOR_CALLBACK: GlobalCallback = GlobalCallback::new(FUNCTION, true);

/// Torch's function that adds a callback.
type Add = unsafe extern "C" fn(Callback) -> u64;

/// One of ours, in this scope.
pub(super) fn callback(scope: usize, start: *const c_void, end: *const c_void) -> Callback {
    let mut scopes = [false; SCOPES];
    scopes[scope] = true;
    Callback { start, end, probability: 1.0, scopes, needs_inputs: false, needs_outputs: false, needs_ids: false }
}

/// A callback of all threads, which is put in and taken out again.
///
/// Those that few steps need are taken out in the others, and not switched off (`at::disableCallback`): torch goes through all
/// callbacks that there are, also those that are off, for each of its ten kinds of ranges whenever it sets a thread's state, which
/// is twice an autograd node.
#[derive(Debug)]
pub(super) struct GlobalCallback {
    scope: usize,
    needs_inputs: bool,
    /// What it calls; null before it may be put in.
    start: AtomicPtr<c_void>,
    end: AtomicPtr<c_void>,
    /// 0: it is not there. [`BEING_ADDED`] while a thread adds it.
    handle: AtomicU64,
}

/// In the place of a handle while a thread adds the callback: two threads that train may begin a step at once.
const BEING_ADDED: u64 = u64::MAX;

impl GlobalCallback {
    const fn new(scope: usize, needs_inputs: bool) -> Self {
        let (start, end) = (AtomicPtr::new(std::ptr::null_mut()), AtomicPtr::new(std::ptr::null_mut()));
        Self { scope, needs_inputs, start, end, handle: AtomicU64::new(0) }
    }

    /// Says what it calls, and looks torch's functions up. Fails where torch has them not.
    pub(super) fn prepare(&self, start: *const c_void, end: *const c_void) -> PyResult<()> {
        let found = [symbol(ADD_GLOBAL).ok_or_else(missing)?, symbol(REMOVE_ANY).ok_or_else(missing)?];
        [&ADD, &REMOVE].iter().zip(found).for_each(|(place, function)| place.store(function, Ordering::Relaxed));
        self.end.store(end.cast_mut(), Ordering::Relaxed);
        self.start.store(start.cast_mut(), Ordering::Relaxed);
        Ok(())
    }

    /// Puts it in, if it is not there. Nothing before [`Self::prepare`].
    pub(super) fn put_in(&self) {
        let (add, start) = (ADD.load(Ordering::Relaxed), self.start.load(Ordering::Relaxed));
        let is_ours = || self.handle.compare_exchange(0, BEING_ADDED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if add.is_null() || start.is_null() || !is_ours() {
            return;
        }
        let plain = callback(self.scope, start, self.end.load(Ordering::Relaxed));
        // SAFETY: `at::addGlobalCallback`; the functions are ours and stay loaded as long as the process lives.
        let handle = unsafe {
            std::mem::transmute::<*mut c_void, Add>(add)(Callback { needs_inputs: self.needs_inputs, ..plain })
        };
        self.handle.store(handle, Ordering::Relaxed);
    }

    /// Takes it out, if it is there. Ranges that are open still end through it.
    pub(super) fn take_out(&self) {
        let (remove, handle) = (REMOVE.load(Ordering::Relaxed), self.handle.load(Ordering::Relaxed));
        let is_there = !remove.is_null() && handle != 0 && handle != BEING_ADDED;
        if is_there && self.handle.compare_exchange(handle, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // SAFETY: `at::removeCallback`, with a handle that torch gave.
            unsafe { std::mem::transmute::<*mut c_void, Remove>(remove)(handle) };
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.handle.load(Ordering::Relaxed) != 0
    }
}

/// Puts the callback of nodes in or takes it out, where nodes are recorded by it. Between two steps.
pub(super) fn watch_nodes(wanted: bool) {
    let is_in_use = RANGE_CALLBACK.is_there() && NODES.load(Ordering::Relaxed);
    if !is_in_use || WATCHED.load(Ordering::Relaxed) == wanted {
        return;
    }
    WATCHED.store(wanted, Ordering::Relaxed);
    if wanted {
        NODE_CALLBACK.put_in();
    } else {
        NODE_CALLBACK.take_out();
    }
}

/// What `work()` says with a callback of this thread for all operators and their inputs.
pub(super) fn with_scan<T>(start: *const c_void, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    with_callback(Callback { needs_inputs: true, ..callback(FUNCTION, start, std::ptr::null()) }, work)
}

/// What `work()` says with a callback of this thread alone, which is gone again before anything else runs.
pub(super) fn with_callback<T>(callback: Callback, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let add = adder(c"_ZN2at22addThreadLocalCallbackENS_22RecordFunctionCallbackE")?;
    let remove = remover().ok_or_else(missing)?;
    // SAFETY: torch's function, and callbacks of ours.
    let handle = unsafe { add(callback) };
    let result = work();
    // SAFETY: the handle just received.
    unsafe { remove(handle) };
    result
}

/// What `work()` says in turns with and without a callback of this thread.
pub(super) fn with_callback_in_turn(
    rounds: usize,
    needs_inputs: bool,
    mut work: impl FnMut() -> PyResult<u64>,
) -> PyResult<(Vec<u64>, Vec<u64>)> {
    let (mut withs, mut withouts) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        withouts.push(work()?);
        let plain = callback(FUNCTION, pass_start as *const c_void, pass_end as *const c_void);
        withs.push(with_callback(Callback { needs_inputs, ..plain }, &mut work)?);
    }
    Ok((withs, withouts))
}

/// Torch's function that adds a callback of all threads.
const ADD_GLOBAL: &CStr = c"_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE";
/// And the one that removes any.
const REMOVE_ANY: &CStr = c"_ZN2at14removeCallbackEm";

/// Torch's function that removes one.
type Remove = unsafe extern "C" fn(u64);

/// Torch's function of this name, which adds a callback.
fn adder(name: &CStr) -> PyResult<Add> {
    let add = symbol(name).ok_or_else(missing)?;
    // SAFETY: only asked for functions with torch's own argument types.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Add>(add) })
}

/// Torch's function that removes one.
fn remover() -> Option<Remove> {
    // SAFETY: the function of this name, with torch's own argument types.
    symbol(REMOVE_ANY).map(|remove| unsafe { std::mem::transmute::<*mut c_void, Remove>(remove) })
}

/// A start that does nothing: what is measured is torch's way to it.
unsafe extern "C" fn pass_start(context: *mut *mut c_void, _range: *const u8) -> *mut *mut c_void {
    // SAFETY: the place for the returned unique_ptr.
    unsafe { *context = std::ptr::null_mut() };
    context
}

/// And an end.
unsafe extern "C" fn pass_end(_range: *const u8, _context: *mut c_void) {}
