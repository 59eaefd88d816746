//! The `tp_call` slot of a type object, and the function that it held before. The slot has no public setter; its offset is
//! checked against `PyType_GetSlot`.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// What the slot held before: Python's generic one, which looks up `__call__`.
pub(super) static ORIGINAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Offset of the slot in bytes from the start of the type object; 0: not known.
pub(super) static OFFSET: AtomicUsize = AtomicUsize::new(0);
/// `torch.nn.Module`, kept alive.
pub(super) static MODULE: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());
/// `offsetof(PyTypeObject, tp_call)` with the default (not free-threaded) object header: PyVarObject, name, two sizes,
/// and ten pointers come before it.
const KNOWN_OFFSET: usize = 128;

/// The function that was in the slot.
#[inline(always)]
pub(super) fn original() -> ffi::ternaryfunc {
    let original = ORIGINAL.load(Ordering::Relaxed);
    // SAFETY: `module_call`, the only caller, is in slots only after `patch_type` has stored a function of this type.
    unsafe { std::mem::transmute::<*mut c_void, ffi::ternaryfunc>(original) }
}

/// The slot of `class`; None where its offset is not known.
pub(super) fn slot_of(class: *mut ffi::PyObject) -> Option<&'static AtomicPtr<c_void>> {
    let offset = OFFSET.load(Ordering::Relaxed);
    if offset == 0 || class.is_null() {
        return None;
    }
    // SAFETY: `class` is a type object (callers), and every type object holds a pointer at the checked offset. Its reads
    // by the interpreter are plain loads of an aligned pointer.
    Some(unsafe { AtomicPtr::from_ptr(class.cast::<u8>().add(offset).cast()) })
}

/// Finds the slot. `module` is `torch.nn.Module`; `plain` any class that is not callable. An error when the layout is
/// not the known one: then nothing has been touched.
#[pyfunction]
fn find_slot(module: &Bound<'_, PyType>, plain: &Bound<'_, PyType>) -> PyResult<()> {
    let unknown = || PyRuntimeError::new_err("this interpreter keeps tp_call in a place the agent does not know");
    let slot_by_api = |class: &Bound<'_, PyType>| {
        // SAFETY: a type object, and a slot number of the stable ABI.
        unsafe { ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_call) }
    };
    let slot_at_offset = |class: &Bound<'_, PyType>| {
        // SAFETY: type objects of all supported versions are larger than this.
        unsafe { class.as_ptr().cast::<u8>().add(KNOWN_OFFSET).cast::<*mut c_void>().read() }
    };
    if size_of::<usize>() != 8 {
        return Err(unknown());
    }
    if OFFSET.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    let original = slot_by_api(module);
    if original.is_null()
        || slot_at_offset(module) != original
        || !slot_by_api(plain).is_null()
        || !slot_at_offset(plain).is_null()
    {
        return Err(unknown());
    }
    ORIGINAL.store(original, Ordering::Relaxed);
    MODULE.store(module.clone().into_ptr(), Ordering::Relaxed);
    OFFSET.store(KNOWN_OFFSET, Ordering::Relaxed);
    Ok(())
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(find_slot, module)?)
}
