//! How the agent learns that a collective is complete.
//!
//! gloo ends the RecordFunction range of an operation when the operation is done, on the thread that did it and without
//! Python: [`started`] and [`finished`]. Where that is not available, a future may report it ([`collective_done`]).
//!
//! NCCL's futures and ranges end at enqueue, which is not completion. For a synchronous operation the current stream waits at
//! once, so an event on that stream before the issue and one after the wait give its begin and end ([`super::device`]). Newer
//! releases of torch run it on that stream itself and return no work to wait for; its end is then where the issuing call
//! returns ([`collective_returned`]).
//!
//! An asynchronous operation of NCCL gets no end, because the stream may wait for it long after it has ended.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::clock::ticks;
use super::device;
use super::policy::{self, Layer};
use super::thread::{self, ThreadState};
use probe_trace::record::{RecordKind, RingRecord};

/// Records that the backend has begun to time an operation that this thread is issuing.
pub(super) fn started(state: &ThreadState, handle: u64) {
    let key = state.collective.get();
    if key != 0 && !state.collective_timed.replace(true) {
        state.instant(RingRecord::new(RecordKind::Started, 0, ticks(), key, handle));
    }
}

/// Records that an operation is done, on the thread that did it.
pub(super) fn finished(state: &ThreadState, handle: u64) {
    let failed = is_handling_exception();
    state.instant(RingRecord::new(RecordKind::Finished, u64::from(failed), ticks(), handle, 0));
}

/// `__cxa_get_globals`, the C++ ABI's own view of this thread's exceptions; null where it is not available.
static EXCEPTIONS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// `__cxa_eh_globals` of the Itanium C++ ABI.
#[repr(C)]
struct ExceptionGlobals {
    caught: *const c_void,
    uncaught: c_uint,
}

/// Whether this thread is in a C++ `catch` block: gloo ends the range of a failed operation inside one.
fn is_handling_exception() -> bool {
    let mut function = EXCEPTIONS.load(Ordering::Relaxed);
    if function.is_null() {
        // SAFETY: looks the symbol up in what is loaded.
        function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_get_globals".as_ptr()) };
        EXCEPTIONS.store(function, Ordering::Relaxed);
    }
    if function.is_null() {
        return false;
    }
    // SAFETY: the ABI's function of this name: no arguments, returns this thread's globals.
    unsafe {
        let globals = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const ExceptionGlobals>(function)();
        globals.as_ref().is_some_and(|globals| !globals.caught.is_null())
    }
}

/// What a future calls when its operation has ended. It has no Python frame, so no signal handler runs in it: torch would take what
/// a handler raises for an error of the callback, and go on.
#[pyclass(frozen, module = "probe_agent._native")]
struct CollectiveEnd {
    key: u64,
}

#[pymethods]
impl CollectiveEnd {
    #[new]
    const fn new(key: u64) -> Self {
        Self { key }
    }

    fn __call__(&self, future: &Bound<'_, PyAny>) {
        let failed = future.call_method0(intern!(future.py(), "value")).is_err();
        collective_done(self.key, failed);
    }
}

/// Records that a future has reported an operation as done.
#[pyfunction]
fn collective_done(key: u64, failed: bool) {
    thread::with(|state| {
        state.instant(RingRecord::new(RecordKind::Done, u64::from(failed), ticks(), key, 0));
    });
}

/// Records that the end of an operation will not be reported.
#[pyfunction]
fn collective_posted(key: u64) {
    thread::with(|state| {
        state.collective.set(0);
        state.instant(RingRecord::new(RecordKind::Posted, 1, ticks(), key, 0));
    });
}

/// Records that a synchronous operation was issued, and torch returned no work to wait for: what the stream does next comes after
/// the operation.
#[pyfunction]
fn collective_returned() {
    thread::with(|state| {
        if state.collective_on_stream.replace(false) && state.collective.get() == 0 {
            let mark = device::mark();
            let has_event = u64::from(device::is_event(mark));
            if !state.instant(RingRecord::new(RecordKind::WaitEnd, has_event, ticks(), 0, 0).marked(mark)) {
                device::take_back(mark);
            }
        }
    });
}

/// A wait for an operation: what `wait(*args, **kwargs)` returns or raises.
///
/// In one function, because between two that Python calls one after the other the handler of a signal may raise, and what has
/// begun would never end.
#[pyfunction]
fn run_wait<'py>(
    wait: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    wait_begin();
    let result = wait.call(args, Some(kwargs));
    wait_end();
    result
}

/// Records that the calling thread begins to wait for an operation.
fn wait_begin() {
    let on = policy::is_on(Layer::Collectives);
    thread::with(|state| state.open_if(on, &state.waits, RecordKind::WaitBegin, 0));
}

/// Records that the calling thread has waited for an operation. Payload 1: the record has an event, which occurs when the
/// operation is done on its device.
fn wait_end() {
    thread::with(|state| {
        // An operation whose issuing raised was not posted, and this wait is for another one.
        let mark = device::mark_if(state.collective_on_stream.replace(false) && state.collective.get() == 0);
        let (payload, b) = (u64::from(device::is_event(mark)), u64::from(mark) << 48);
        if !state.close(&state.waits, RecordKind::WaitEnd, payload, 0, b) {
            device::take_back(mark);
        }
    });
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CollectiveEnd>()?;
    module.add_function(wrap_pyfunction!(collective_done, module)?)?;
    module.add_function(wrap_pyfunction!(collective_returned, module)?)?;
    module.add_function(wrap_pyfunction!(run_wait, module)?)?;
    module.add_function(wrap_pyfunction!(collective_posted, module)?)
}
