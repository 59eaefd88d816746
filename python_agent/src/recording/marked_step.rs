//! Steps that the program marks, where no optimizer of torch ends them.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;

use super::thread::{self, RECORD};
use super::{boundary, slot};
use crate::shared;

/// Ends a training step here and now; for loops in which no optimizer of torch steps.
#[pyfunction]
fn mark_step(py: Python<'_>) {
    thread::with(|state| {
        if state.mode.get() == RECORD && shared::ENABLED.load(Ordering::Relaxed) {
            slot::put_back_at_end(py, state, boundary::may_lack_forward(state));
            boundary::end_step_by_program(state);
        }
    });
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(mark_step, module)?)
}
