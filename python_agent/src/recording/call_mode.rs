//! Whether an outermost call trains, as far as its module and torch tell when it begins: eval mode, gradients off.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::prelude::*;
use pyo3::{ffi, intern};

use super::libtorch::symbol;
use probe_trace::payload::{EVAL_MODE, NO_GRADIENTS};

/// `bool c10::GradMode::is_enabled()`: false in `no_grad` and in `inference_mode`.
type IsEnabled = unsafe extern "C" fn() -> bool;
/// Null where this torch has none of that name: then `torch.is_grad_enabled` is asked.
static IS_ENABLED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static ASK: OnceLock<Py<PyAny>> = OnceLock::new();

/// The bits for the record of an outermost call of `module`: [`EVAL_MODE`] and [`NO_GRADIENTS`].
///
/// # Safety
/// The GIL is held, no exception is set, and `module` is alive.
pub(super) unsafe fn of(module: *mut ffi::PyObject) -> u64 {
    // SAFETY: as of the caller.
    let (gradients, training) = unsafe { (has_gradients(), is_training(module)) };
    let no_gradients = if gradients { 0 } else { NO_GRADIENTS };
    // A module without this attribute (of torch.compile, of torch.jit) counts as training if gradients are on.
    no_gradients | if training.unwrap_or(gradients) { 0 } else { EVAL_MODE }
}

unsafe fn has_gradients() -> bool {
    let function = IS_ENABLED.load(Ordering::Relaxed);
    if !function.is_null() {
        // SAFETY: torch's function of this name has this signature, in every release.
        return unsafe { std::mem::transmute::<*mut c_void, IsEnabled>(function)() };
    }
    // SAFETY: as of the caller; a function without arguments, whose new reference is given back and whose error is cleared.
    unsafe {
        let Some(ask) = ASK.get() else { return true };
        let answer = ffi::PyObject_CallObject(ask.as_ptr(), std::ptr::null_mut());
        if answer.is_null() {
            ffi::PyErr_Clear();
            return true;
        }
        ffi::Py_DecRef(answer);
        answer != ffi::Py_False()
    }
}

/// `module.training`, where that is a plain attribute of the object, which runs no code of the program.
unsafe fn is_training(module: *mut ffi::PyObject) -> Option<bool> {
    // SAFETY: as of the caller. What is borrowed from the dictionary is compared before anything else runs.
    unsafe {
        let py = Python::assume_attached();
        let own = ffi::PyObject_GetAttr(module, intern!(py, "__dict__").as_ptr());
        if own.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        let mut value = std::ptr::null_mut();
        if ffi::PyDict_Check(own) != 0 {
            value = ffi::PyDict_GetItemWithError(own, intern!(py, "training").as_ptr());
        }
        ffi::Py_DecRef(own);
        if value.is_null() && !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear();
        }
        if value == ffi::Py_True() {
            Some(true)
        } else if value == ffi::Py_False() {
            Some(false)
        } else {
            None
        }
    }
}

/// Finds torch's own function; `ask` is `torch.is_grad_enabled`, which returns the same.
#[pyfunction]
fn find_grad_mode(ask: Py<PyAny>) {
    let found = symbol(c"_ZN3c108GradMode10is_enabledEv").unwrap_or(std::ptr::null_mut());
    IS_ENABLED.store(found, Ordering::Relaxed);
    ASK.get_or_init(|| ask);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(find_grad_mode, module)?)
}
