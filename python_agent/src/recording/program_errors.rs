//! Exceptions of the program's that are raised in code of ours: Python runs its signal handlers wherever the main thread
//! is, also in a callback that we were about to make. They go on to the program.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::prelude::*;

/// Whether an exception that left code of ours is the program's: Ctrl-C, an exit, or what a signal handler raised.
pub(super) fn is_of_program(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py) || asked(py, error).unwrap_or(false)
}

fn asked(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    py.import("probe_agent.signals")?
        .getattr("is_of_the_program")?
        .call1((error.value(py), error.traceback(py)))?
        .extract()
}

/// What the main thread runs where it executes Python next.
struct Raised {
    error: PyErr,
    /// A forked child has a copy of the interpreter's list.
    process: u32,
}

/// Has `error` raised in the program as soon as its main thread runs Python again, which is where its handlers run.
/// False where it can't be.
pub(super) fn hand_on(error: PyErr) -> bool {
    let given = Box::into_raw(Box::new(Raised { error, process: std::process::id() }));
    // SAFETY: the function takes what it is given here, once.
    let taken = unsafe { ffi::Py_AddPendingCall(Some(raise), given.cast::<c_void>()) } == 0;
    if !taken {
        // SAFETY: the interpreter did not take it.
        drop(unsafe { Box::from_raw(given) });
    }
    taken
}

extern "C" fn raise(raised: *mut c_void) -> c_int {
    // SAFETY: `hand_on` gave this to the interpreter, which calls us once for it.
    let raised = unsafe { Box::from_raw(raised.cast::<Raised>()) };
    if raised.process != std::process::id() {
        // Its Python objects belong to no thread of this process that may let go of them now.
        std::mem::forget(raised);
        return 0;
    }
    // SAFETY: the interpreter makes pending calls with the GIL held.
    raised.error.restore(unsafe { Python::assume_attached() });
    -1
}
