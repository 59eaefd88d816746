//! Exceptions of the program that are raised in code of ours: Python runs signal handlers at any point of the main thread, also
//! in a callback that we are about to make. They are passed on to the program.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use super::pending_call;
use crate::shared;

/// Whether an exception that left code of ours is the program's: Ctrl-C, an exit, or what a signal handler raised.
pub(super) fn is_of_program(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py) || ask_python(py, error).unwrap_or(false)
}

/// Raises `error` in the program as soon as its main thread, on which signal handlers run, runs Python again. False where that is
/// not possible.
pub(super) fn hand_on(py: Python<'_>, error: &PyErr) -> bool {
    let error = error.clone_ref(py);
    pending_call::on_main_thread(|_| Err(error))
}

/// Keeps an error of ours as the newest problem, so that training does not see it. An error of the program is passed on to it.
/// Returns whether the error was one of ours, or there was none.
pub(super) fn swallow(py: Python<'_>, what: &str, result: PyResult<()>) -> bool {
    let Err(error) = result else { return true };
    if is_of_program(py, &error) && hand_on(py, &error) {
        return false;
    }
    *shared::lock(&shared::PROBLEM) = format!("{what}: {}", error.value(py));
    true
}

fn ask_python(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    py.import("probe_agent.signals")?
        .getattr("is_of_the_program")?
        .call1((error.value(py), error.traceback(py)))?
        .extract()
}
