//! Work for the main thread, which it does where it runs Python next: a pending call of the interpreter's.

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

struct PendingCall {
    work: Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>,
    /// Id of the process that added the call: a forked child has a copy of the interpreter's list.
    process: u32,
}

/// Makes the main thread do `work` once; an error is raised in the program there. False where the interpreter's list is full, and
/// the work will not be done.
pub(super) fn on_main_thread(work: impl FnOnce(Python<'_>) -> PyResult<()> + Send + 'static) -> bool {
    let given = Box::into_raw(Box::new(PendingCall { work: Box::new(work), process: std::process::id() }));
    // SAFETY: the function takes what it is given here, once.
    let taken = unsafe { ffi::Py_AddPendingCall(Some(run), given.cast::<c_void>()) } == 0;
    if !taken {
        // SAFETY: the interpreter did not take it.
        drop(unsafe { Box::from_raw(given) });
    }
    taken
}

extern "C" fn run(call: *mut c_void) -> c_int {
    // SAFETY: `on_main_thread` gave this to the interpreter, which calls us once for it.
    let call = unsafe { Box::from_raw(call.cast::<PendingCall>()) };
    if call.process != std::process::id() {
        // No thread of this process may release its Python objects now.
        std::mem::forget(call);
        return 0;
    }
    // SAFETY: the interpreter makes pending calls with the GIL held.
    let py = unsafe { Python::assume_attached() };
    match (call.work)(py) {
        Ok(()) => 0,
        Err(error) => {
            error.restore(py);
            -1
        }
    }
}
