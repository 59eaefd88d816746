//! Module calls: what is recorded before and after each.

use std::sync::atomic::Ordering;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::boundary::{self, DETAIL};
use super::clock::ticks;
use super::libtorch::peek;
use super::policy::{self, Layer};
use super::thread::{self, BESIDE, TESTING, ThreadState};
use super::{call_mode, device, first_use, module_memory, module_names};
use crate::shared;
use probe_trace::record::{RecordKind, RecordTable, RingRecord};

/// Records the beginning of a call. False where it was not recorded: then its end must not be either.
#[inline(always)]
pub(super) fn enter(state: &ThreadState, module: *mut ffi::PyObject, outermost: bool) -> bool {
    if outermost && state.is_in_backward() && !state.detail.get() {
        return false;
    }
    // The times of steps are made of outermost calls, so these have priority in the ring. Whether they train is recorded too.
    let (class, call_mode) = if outermost && !state.is_in_backward() {
        // SAFETY: slots and hooks are called with the GIL held and no exception set, and `module` is alive for the call.
        let call_mode = unsafe { call_mode::of(module) };
        state.call_mode.set(call_mode);
        (RecordTable::Steps, call_mode)
    } else {
        (RecordTable::TorchTrace, 0)
    };
    // SAFETY: `module` is an object, alive for the call.
    let class_address = unsafe { ffi::Py_TYPE(module) } as u64;
    // The cost of the event is part of the caller's time, here and at the end.
    let memory = if state.detail.get() { module_memory::query() } else { None };
    let mark = device::mark_if(state.detail.get());
    let record = RingRecord::new(RecordKind::Enter, peek() | call_mode, ticks(), module as u64, class_address);
    let begun = state.begin(class, record.marked(mark));
    if begun {
        memory.into_iter().for_each(|memory| memory.record(state, record.ts, false));
    } else {
        device::take_back(mark);
    }
    begun
}

/// Records the end of a call whose beginning was recorded. `may_ask`: the GIL is held and no exception is set.
#[inline(always)]
pub(super) fn leave(state: &ThreadState, module: u64, may_ask: bool) {
    let record = RingRecord::new(RecordKind::Exit, peek(), ticks(), module, 0);
    let record = record.marked(device::mark_if(state.detail.get()));
    if may_ask
        && state.detail.get()
        && let Some(memory) = module_memory::query()
    {
        memory.record(state, record.ts, true);
    }
    state.end(record);
}

/// Whether an outermost call of `module` is a part of loading, as of transforms of torchvision in a Dataset without workers: the
/// thread is within the request for a batch, and the module is not called outside of one too, as a policy is that plays while it
/// is asked for its experience.
pub(super) fn is_loading(state: &ThreadState, module: *mut ffi::PyObject) -> bool {
    state.data.depth() > 0 && !module_names::is_known_root(state, module)
}

/// Prepares for an outermost call: everything that need not be done for the calls within it.
pub(super) fn enter_outermost(state: &ThreadState, module: *mut ffi::PyObject) {
    if !state.is_in_backward() {
        // SAFETY: the interpreter calls slots, and hooks, with the GIL held.
        let py = unsafe { Python::assume_attached() };
        first_use::happened(py);
        if !state.data_seen.get() {
            boundary::check(py, state);
        }
        if shared::TRAINING_THREAD.load(Ordering::Relaxed) == 0 {
            let _ =
                shared::TRAINING_THREAD.compare_exchange(0, thread::identifier(), Ordering::Relaxed, Ordering::Relaxed);
        }
        module_names::know_root(py, state, module);
        if state.between_steps.replace(false) || !boundary::STEPPED.load(Ordering::Relaxed) {
            boundary::apply_detail(state);
        }
    }
    state.detail.set(DETAIL.load(Ordering::Relaxed) && policy::is_on(Layer::Forward));
}

/// Returns whether a call may go on on a thread that does not record; if not, an exception is set.
#[cold]
pub(super) fn may_call(state: &ThreadState, module: *mut ffi::PyObject) -> bool {
    match state.mode.get() {
        TESTING => state.test_calls.set(state.test_calls.get() + 1),
        BESIDE => {
            // SAFETY: slots are called with the GIL held, and `module` is alive for the call.
            let (py, module) = unsafe {
                let py = Python::assume_attached();
                (py, Bound::from_borrowed_ptr(py, module))
            };
            if trains(&module).unwrap_or(false) {
                beside_error().restore(py);
                return false;
            }
        }
        _ => {}
    }
    true
}

/// Whether a call of `module` now would be a training one.
pub(super) fn trains(module: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !module.getattr("training")?.is_truthy()? {
        return Ok(false);
    }
    module.py().import("torch")?.getattr("is_grad_enabled")?.call0()?.is_truthy()
}

/// The error that ends a snippet beside training which would train.
pub(super) fn beside_error() -> PyErr {
    let message = shared::lock(&BESIDE_MESSAGE).clone();
    PyRuntimeError::new_err(if message.is_empty() {
        "a snippet beside training must not train".to_owned()
    } else {
        message
    })
}

pub(super) static BESIDE_MESSAGE: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());

/// Sets the text of the error that ends a snippet beside training which would train.
#[pyfunction]
fn set_beside_message(message: String) {
    *shared::lock(&BESIDE_MESSAGE) = message;
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_beside_message, module)?)
}
