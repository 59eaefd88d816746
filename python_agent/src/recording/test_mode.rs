//! Self-tests of the layers at install: the calls of a thread are counted and not recorded.

use pyo3::prelude::*;

use super::thread::{self, TESTING};
use super::thread_mode::ThreadMode;

/// Begins a self-test on this thread. Returns the thread's mode, for [`end_self_test`].
#[pyfunction]
fn begin_self_test() -> ThreadMode {
    thread::with(|state| {
        state.test_calls.set(0);
        state.test_ranges.set(0);
        ThreadMode(state.mode.replace(TESTING))
    })
}

/// Ends a self-test and sets the thread's mode. Returns how many module calls and how many user ranges called
/// `probe_agent.self_test` were seen.
#[pyfunction]
fn end_self_test(mode: ThreadMode) -> (u32, u32) {
    thread::with(|state| {
        state.mode.set(mode.0);
        (state.test_calls.get(), state.test_ranges.get())
    })
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(begin_self_test, module)?)?;
    module.add_function(wrap_pyfunction!(end_self_test, module)?)
}
