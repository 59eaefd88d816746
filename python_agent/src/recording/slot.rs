//! The `tp_call` slot of `torch.nn.Module` and its subclasses: what `module(x)` goes through before any Python code.
//!
//! Python's own `__call__` stays as it is, so hooks, `torch.compile` and subclasses with a `__call__` of their own see no
//! difference. The slot has no public setter; its place in the type object is checked against `PyType_GetSlot`.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::forward::module_call;

/// What the slot held before: Python's generic one, which looks up `__call__`.
static ORIGINAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Where the slot is, in bytes from the start of the type object; 0: not known.
static OFFSET: AtomicUsize = AtomicUsize::new(0);
/// `torch.nn.Module`, kept alive.
static MODULE: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());

/// `offsetof(PyTypeObject, tp_call)` with the default (not free-threaded) object header: PyVarObject, name, two sizes,
/// and ten pointers come before it.
const KNOWN_OFFSET: usize = 128;

/// What was in the slot.
#[inline(always)]
pub(super) fn original() -> ffi::ternaryfunc {
    let original = ORIGINAL.load(Ordering::Relaxed);
    // SAFETY: `module_call`, the only caller, is in slots only after `patch_type` has stored a function of this type.
    unsafe { std::mem::transmute::<*mut c_void, ffi::ternaryfunc>(original) }
}

/// The slot of `class`, or None where its place is not known.
fn slot_of(class: *mut ffi::PyObject) -> Option<&'static AtomicPtr<c_void>> {
    let offset = OFFSET.load(Ordering::Relaxed);
    if offset == 0 || class.is_null() {
        return None;
    }
    // SAFETY: `class` is a type object (callers), and every type object holds a pointer at the checked offset. Its reads
    // by the interpreter are plain loads of an aligned pointer.
    Some(unsafe { AtomicPtr::from_ptr(class.cast::<u8>().add(offset).cast()) })
}

fn ours() -> *mut c_void {
    module_call as *const () as *mut c_void
}

/// Finds the slot. `module` is `torch.nn.Module`; `plain` any class that is not callable. An error when the layout is
/// not the known one: then nothing has been touched.
#[pyfunction]
fn find_slot(module: &Bound<'_, PyType>, plain: &Bound<'_, PyType>) -> PyResult<()> {
    let unknown = || PyRuntimeError::new_err("this interpreter keeps tp_call in a place the agent does not know");
    let wanted = |class: &Bound<'_, PyType>| {
        // SAFETY: a type object, and a slot number of the stable ABI.
        unsafe { ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_call) }
    };
    let found = |class: &Bound<'_, PyType>| {
        // SAFETY: type objects of all supported versions are larger than this.
        unsafe { class.as_ptr().cast::<u8>().add(KNOWN_OFFSET).cast::<*mut c_void>().read() }
    };
    if size_of::<usize>() != 8 {
        return Err(unknown());
    }
    if OFFSET.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    let original = wanted(module);
    if original.is_null() || found(module) != original || !wanted(plain).is_null() || !found(plain).is_null() {
        return Err(unknown());
    }
    ORIGINAL.store(original, Ordering::Relaxed);
    MODULE.store(module.clone().into_ptr(), Ordering::Relaxed);
    OFFSET.store(KNOWN_OFFSET, Ordering::Relaxed);
    Ok(())
}

/// Puts our function into the slot of `class`, where the original one is. True if it is there now.
#[pyfunction]
fn patch_type(class: &Bound<'_, PyType>) -> bool {
    let Some(slot) = slot_of(class.as_ptr()) else { return false };
    let original = ORIGINAL.load(Ordering::Relaxed);
    slot.compare_exchange(original, ours(), Ordering::AcqRel, Ordering::Acquire).is_ok_and(|_| true)
        || slot.load(Ordering::Relaxed) == ours()
}

/// Takes it out again.
#[pyfunction]
fn unpatch_type(class: &Bound<'_, PyType>) {
    if let Some(slot) = slot_of(class.as_ptr()) {
        let original = ORIGINAL.load(Ordering::Relaxed);
        let _ = slot.compare_exchange(ours(), original, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Whether `class` has our function.
#[pyfunction]
fn is_patched(class: &Bound<'_, PyType>) -> bool {
    slot_of(class.as_ptr()).is_some_and(|slot| slot.load(Ordering::Relaxed) == ours())
}

/// Whether somebody has put the original back, as assigning `nn.Module.__call__` does for all subclasses.
#[inline]
pub(super) fn was_reset() -> bool {
    slot_of(MODULE.load(Ordering::Relaxed)).is_some_and(|slot| slot.load(Ordering::Relaxed) != ours())
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(find_slot, module)?)?;
    module.add_function(wrap_pyfunction!(patch_type, module)?)?;
    module.add_function(wrap_pyfunction!(unpatch_type, module)?)?;
    module.add_function(wrap_pyfunction!(is_patched, module)?)
}
