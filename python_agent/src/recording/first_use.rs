//! The first sign of training in this process, at which the agent connects.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use super::program_errors;
use super::untraced::Untraced;
use crate::shared;

static WAITING: AtomicBool = AtomicBool::new(false);
pub(super) static CALLBACK: Mutex<Option<Py<PyAny>>> = Mutex::new(None);

/// Notes a sign of training: an outermost module was called, an optimizer stepped, or a process group was made.
#[inline]
pub(super) fn happened(py: Python<'_>) {
    if WAITING.load(Ordering::Relaxed) && WAITING.swap(false, Ordering::AcqRel) {
        let callback = shared::lock(&CALLBACK).take();
        let _untraced = Untraced::new(py);
        if let Some(callback) = callback
            && !program_errors::swallow(py, "the first connection", callback.call0(py).map(drop))
        {
            // The program interrupted it (Ctrl-C): the next sign counts as the first one.
            *shared::lock(&CALLBACK) = Some(callback);
            WAITING.store(true, Ordering::Release);
        }
    }
}

/// Sets `callback`, which is called once, at the next sign of training.
#[pyfunction]
fn set_first_use_callback(callback: Option<Py<PyAny>>) {
    let wanted = callback.is_some();
    // The old object is dropped without a lock held, because its finalizer may run any code.
    let before = std::mem::replace(&mut *shared::lock(&CALLBACK), callback);
    drop(before);
    WAITING.store(wanted, Ordering::Release);
}

/// Notes a sign of training that Python sees.
#[pyfunction]
fn first_use(py: Python<'_>) {
    happened(py);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_first_use_callback, module)?)?;
    module.add_function(wrap_pyfunction!(first_use, module)?)
}
