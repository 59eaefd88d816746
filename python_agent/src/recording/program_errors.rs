//! Exceptions of the program's that are raised in code of ours: Python runs its signal handlers wherever the main thread
//! is, also in a callback that we were about to make. They go on to the program.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use super::pending_call;
use crate::shared;

/// Whether an exception that left code of ours is the program's: Ctrl-C, an exit, or what a signal handler raised.
pub(super) fn is_of_program(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py) || asked(py, error).unwrap_or(false)
}

/// Has `error` raised in the program as soon as its main thread runs Python again, which is where its handlers run.
/// False where it can't be.
pub(super) fn hand_on(py: Python<'_>, error: &PyErr) -> bool {
    let error = error.clone_ref(py);
    pending_call::on_main_thread(|_| Err(error))
}

/// An error of ours is nobody's business in training: it is kept as the newest problem. The program's own goes on to it.
/// Whether it was one of ours, or none.
pub(super) fn swallow(py: Python<'_>, what: &str, result: PyResult<()>) -> bool {
    let Err(error) = result else { return true };
    if is_of_program(py, &error) && hand_on(py, &error) {
        return false;
    }
    *shared::lock(&shared::PROBLEM) = format!("{what}: {}", error.value(py));
    true
}

fn asked(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    py.import("probe_agent.signals")?
        .getattr("is_of_the_program")?
        .call1((error.value(py), error.traceback(py)))?
        .extract()
}
