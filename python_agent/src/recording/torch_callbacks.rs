//! torch's RecordFunction callbacks: added, switched and removed, whatever they do.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::autograd_passes::{NODES, WATCHED};
use super::libtorch::{missing, symbol};

const SCOPES: usize = 10;
pub(super) const FUNCTION: usize = 0;
pub(super) const BACKWARD_FUNCTION: usize = 1;
pub(super) const USER_SCOPE: usize = 7;

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

/// `at::disableCallback` and `at::reenableCallback`; null where torch has none.
pub(super) static DISABLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub(super) static REENABLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Handles of the callbacks that are there; 0: not.
pub(super) static ADDED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Torch's function that adds a callback.
pub(super) type Add = unsafe extern "C" fn(Callback) -> u64;

/// One of ours, in this scope.
pub(super) fn callback(scope: usize, start: *const c_void, end: *const c_void) -> Callback {
    let mut scopes = [false; SCOPES];
    scopes[scope] = true;
    Callback { start, end, probability: 1.0, scopes, needs_inputs: false, needs_outputs: false, needs_ids: false }
}

/// Switches the callback of nodes on or off, if it is there. Between two steps.
pub(super) fn watch_nodes(wanted: bool) {
    let handle = ADDED[0].load(Ordering::Relaxed);
    if handle == 0 || !NODES.load(Ordering::Relaxed) || WATCHED.load(Ordering::Relaxed) == wanted {
        return;
    }
    if DISABLE.load(Ordering::Relaxed).is_null() || REENABLE.load(Ordering::Relaxed).is_null() {
        // It stays on, and costs what it costs.
        return;
    }
    WATCHED.store(wanted, Ordering::Relaxed);
    switch(handle, wanted);
}

/// Switches a callback on or off, where torch can.
pub(super) fn switch(handle: u64, on: bool) {
    let function = if on { &REENABLE } else { &DISABLE }.load(Ordering::Relaxed);
    if !function.is_null() {
        // SAFETY: torch's functions, with a handle that it gave.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64)>(function)(handle) };
    }
}

/// Adds a callback of all operators, with their inputs, that is switched off. After
/// [`add_record_function`](super::record_function) has found how to switch it.
pub(super) fn add_switched_off(start: *const c_void, end: *const c_void) -> PyResult<u64> {
    let add = adder(ADD_GLOBAL)?;
    if DISABLE.load(Ordering::Relaxed).is_null() || REENABLE.load(Ordering::Relaxed).is_null() {
        return Err(PyRuntimeError::new_err("this torch can't switch callbacks off"));
    }
    // SAFETY: torch's function of this name; the callbacks are ours and stay loaded as long as the process lives.
    let handle = unsafe { add(Callback { needs_inputs: true, ..callback(FUNCTION, start, end) }) };
    switch(handle, false);
    Ok(handle)
}

/// Takes a callback out; 0 is none.
pub(super) fn take_out(handle: u64) {
    if let Some(remove) = remover().filter(|_| handle != 0) {
        // SAFETY: a handle that torch gave.
        unsafe { remove(handle) };
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
pub(super) const ADD_GLOBAL: &CStr = c"_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE";

/// Torch's function that removes one.
pub(super) type Remove = unsafe extern "C" fn(u64);

/// Torch's function of this name, which adds a callback.
pub(super) fn adder(name: &CStr) -> PyResult<Add> {
    let add = symbol(name).ok_or_else(missing)?;
    // SAFETY: only asked for functions with torch's own argument types.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Add>(add) })
}

/// Torch's function that removes one.
pub(super) fn remover() -> Option<Remove> {
    // SAFETY: the function of this name, with torch's own argument types.
    symbol(c"_ZN2at14removeCallbackEm").map(|remove| unsafe { std::mem::transmute::<*mut c_void, Remove>(remove) })
}

/// A start that does nothing: what is measured is torch's way to it.
unsafe extern "C" fn pass_start(context: *mut *mut c_void, _range: *const u8) -> *mut *mut c_void {
    // SAFETY: the place for the returned unique_ptr.
    unsafe { *context = std::ptr::null_mut() };
    context
}

/// And an end.
unsafe extern "C" fn pass_end(_range: *const u8, _context: *mut c_void) {}
