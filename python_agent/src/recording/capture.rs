//! What a capture by torch.profiler needs besides boundaries: ranges around modules in its trace, and calls on the main thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::{pending_call, program_errors};
use crate::shared;

/// Whether calls of modules are ranges of the profiler.
static HAS_RANGES: AtomicBool = AtomicBool::new(false);
/// `begin(module)` begins a range and returns it, with its `__exit__`; None: no range.
static BEGIN: Mutex<Option<Py<PyAny>>> = Mutex::new(None);

/// Forgets in a forked child the capture of the parent.
pub(super) fn begin_anew() {
    HAS_RANGES.store(false, Ordering::Relaxed);
}

/// Calls a module, within a range of the profiler where those are on.
///
/// # Safety
/// `module` is alive for the call, and the GIL is held.
#[inline(always)]
pub(super) unsafe fn ranged(
    module: *mut ffi::PyObject,
    call: impl FnOnce() -> *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    if !HAS_RANGES.load(Ordering::Relaxed) {
        return call();
    }
    // SAFETY: the caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: `module` is alive, as the caller promises.
    let range = begin(py, unsafe { Bound::from_borrowed_ptr(py, module) });
    let result = call();
    if let Some(range) = range {
        end(py, range);
    }
    result
}

#[cold]
fn begin<'py>(py: Python<'py>, module: Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let begin = shared::lock(&BEGIN).as_ref().map(|begin| begin.clone_ref(py))?;
    let begun = begin.bind(py).call1((module,));
    let range = begun.as_ref().ok().filter(|range| !range.is_none()).cloned();
    program_errors::swallow(py, "a range of a module", begun.map(drop));
    range
}

/// Ends a range of a module. An exception that is set stays.
#[cold]
fn end(py: Python<'_>, range: Bound<'_, PyAny>) {
    let passing = PyErr::take(py);
    let nothing = py.None();
    let ended = range.call_method1("__exit__", (&nothing, &nothing, &nothing));
    program_errors::swallow(py, "a range of a module", ended.map(drop));
    drop(range);
    if let Some(passing) = passing {
        passing.restore(py);
    }
}

/// Sets `begin(module)`, which is called before each call of a module from now on; None: it is no longer called.
#[pyfunction]
fn set_module_ranges(begin: Option<Py<PyAny>>) {
    HAS_RANGES.store(begin.is_some(), Ordering::Relaxed);
    // The old object is dropped without a lock held, because its finalizer may run any code.
    let before = std::mem::replace(&mut *shared::lock(&BEGIN), begin);
    drop(before);
}

/// Makes the main thread call `work()` when it runs Python next. False where that is not possible.
#[pyfunction]
fn on_main_thread(work: Py<PyAny>) -> bool {
    pending_call::on_main_thread(move |py| {
        let done = work.call0(py).map(drop);
        // Dropped here, with the GIL held: this may be the last reference.
        drop(work);
        done
    })
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_module_ranges, module)?)?;
    module.add_function(wrap_pyfunction!(on_main_thread, module)?)
}
