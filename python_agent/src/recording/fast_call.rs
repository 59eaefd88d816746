//! Calls of modules past torch's own `__call__`, for programs that ask for it (`PROBE_LAYERS=forward=fast_call`).
//!
//! For a module without hooks `__call__` does nothing but call `forward`, in two Python functions that take several times
//! as long as what the agent adds. Here it is called directly, where everything that these functions would have looked
//! at says so at the time of the call; otherwise the call goes its usual way. What differs is a traceback, which lacks
//! their two lines a module.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use pyo3::{ffi, intern};

use super::libtorch::symbol;

/// What torch's functions look at, as it was when the layer was put in.
struct Torch {
    /// `Module.__call__` and `Module._call_impl`: a class that has others has reasons.
    call: Py<PyAny>,
    call_impl: Py<PyAny>,
    /// Names of `torch.nn.modules.module`, where the hooks of all modules are, and of `torch.autograd.profiler`.
    module_names: Py<PyDict>,
    profiler_names: Py<PyDict>,
    /// Whether torch.jit traces, and what evaluates frames instead of Python (torch.compile).
    is_tracing: Py<PyAny>,
    evaluates_frames: Py<PyAny>,
}

/// `const std::shared_ptr<TracingState>& getTracingState()` of torch.jit: its first word is null where nothing is traced.
type TracingState = unsafe extern "C" fn() -> *const *const c_void;
/// Null: `is_tracing` is asked, which takes longer.
static TRACING: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

static TORCH: OnceLock<Torch> = OnceLock::new();
static ON: AtomicBool = AtomicBool::new(false);

/// Calls `module.forward` if that is all that calling it would do: what it returns, NULL with its exception included.
///
/// # Safety
/// As of a `tp_call` slot: the GIL is held, and the arguments are what the interpreter gave it.
#[inline(always)]
pub(super) unsafe fn call(
    module: *mut ffi::PyObject,
    args: *mut ffi::PyObject,
    kwargs: *mut ffi::PyObject,
) -> Option<*mut ffi::PyObject> {
    if !ON.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: as of the caller.
    unsafe { call_now(module, args, kwargs) }
}

#[inline(never)]
unsafe fn call_now(
    module: *mut ffi::PyObject,
    args: *mut ffi::PyObject,
    kwargs: *mut ffi::PyObject,
) -> Option<*mut ffi::PyObject> {
    // SAFETY: as of the caller; all objects are alive, and what a check leaves of an exception is cleared.
    unsafe {
        let py = Python::assume_attached();
        let torch = TORCH.get()?;
        let Some(forward) = forward_of(py, torch, module) else {
            if !ffi::PyErr_Occurred().is_null() {
                ffi::PyErr_Clear();
            }
            return None;
        };
        let result = ffi::PyObject_Call(forward, args, kwargs);
        ffi::Py_DecRef(forward);
        Some(result)
    }
}

/// The bound `forward`, a new reference, where nothing else is to be called.
unsafe fn forward_of(py: Python<'_>, torch: &Torch, module: *mut ffi::PyObject) -> Option<*mut ffi::PyObject> {
    // SAFETY: as of the caller. References that are borrowed from dictionaries are used before anything else runs.
    unsafe {
        let class = ffi::Py_TYPE(module).cast();
        if !is(class, intern!(py, "__call__").as_ptr(), torch.call.as_ptr())
            || !is(class, intern!(py, "_call_impl").as_ptr(), torch.call_impl.as_ptr())
            || !is(class, intern!(py, "_compiled_call_impl").as_ptr(), ffi::Py_None())
        {
            return None;
        }
        let own = ffi::PyObject_GetAttr(module, intern!(py, "__dict__").as_ptr());
        if own.is_null() {
            return None;
        }
        let plain = ffi::PyDict_Check(own) != 0
            && ffi::PyDict_GetItemWithError(own, intern!(py, "_call_impl").as_ptr()).is_null()
            && is_null_or_none(ffi::PyDict_GetItemWithError(own, intern!(py, "_compiled_call_impl").as_ptr()))
            && is_empty(own, intern!(py, "_forward_hooks").as_ptr())
            && is_empty(own, intern!(py, "_forward_pre_hooks").as_ptr())
            && is_empty(own, intern!(py, "_backward_hooks").as_ptr())
            && is_empty(own, intern!(py, "_backward_pre_hooks").as_ptr());
        ffi::Py_DecRef(own);
        let all = torch.module_names.as_ptr();
        if !plain
            || !is_empty(all, intern!(py, "_global_forward_hooks").as_ptr())
            || !is_empty(all, intern!(py, "_global_forward_pre_hooks").as_ptr())
            || !is_empty(all, intern!(py, "_global_backward_hooks").as_ptr())
            || !is_empty(all, intern!(py, "_global_backward_pre_hooks").as_ptr())
        {
            return None;
        }
        // A profiler knows modules by the functions that are left out here.
        let profiler = torch.profiler_names.as_ptr();
        let profiles = ffi::PyDict_GetItemWithError(profiler, intern!(py, "_is_profiler_enabled").as_ptr());
        if profiles != ffi::Py_False() || traces(torch) || !says(torch.evaluates_frames.as_ptr(), ffi::Py_None()) {
            return None;
        }
        let forward = ffi::PyObject_GetAttr(module, intern!(py, "forward").as_ptr());
        (!forward.is_null()).then_some(forward)
    }
}

/// Whether torch.jit traces on this thread, or nobody can say.
unsafe fn traces(torch: &Torch) -> bool {
    let state = TRACING.load(Ordering::Relaxed);
    // SAFETY: as of the caller; torch's function of this name has this signature, and its answer is never null.
    unsafe {
        if state.is_null() {
            return !says(torch.is_tracing.as_ptr(), ffi::Py_False());
        }
        !std::mem::transmute::<*mut c_void, TracingState>(state)().read().is_null()
    }
}

/// Whether an object's attribute is exactly this one.
unsafe fn is(object: *mut ffi::PyObject, name: *mut ffi::PyObject, wanted: *mut ffi::PyObject) -> bool {
    // SAFETY: as of the caller; the reference is given back, and only the address is compared.
    unsafe {
        let found = ffi::PyObject_GetAttr(object, name);
        if found.is_null() {
            return false;
        }
        ffi::Py_DecRef(found);
        found == wanted
    }
}

/// Whether a dictionary in a dictionary is there and has nothing in it.
unsafe fn is_empty(of: *mut ffi::PyObject, name: *mut ffi::PyObject) -> bool {
    // SAFETY: as of the caller.
    unsafe {
        let found = ffi::PyDict_GetItemWithError(of, name);
        !found.is_null() && ffi::PyDict_Check(found) != 0 && ffi::PyDict_Size(found) == 0
    }
}

unsafe fn is_null_or_none(object: *mut ffi::PyObject) -> bool {
    // SAFETY: None is always there.
    object.is_null() || object == unsafe { ffi::Py_None() }
}

/// Whether a function without arguments answers exactly this.
unsafe fn says(function: *mut ffi::PyObject, wanted: *mut ffi::PyObject) -> bool {
    // SAFETY: as of the caller.
    unsafe {
        let answer = ffi::PyObject_CallObject(function, std::ptr::null_mut());
        if answer.is_null() {
            return false;
        }
        ffi::Py_DecRef(answer);
        answer == wanted
    }
}

/// Calls modules directly where that is the same from here on, or no more. `module`: `torch.nn.Module`.
#[pyfunction]
#[pyo3(signature = (on, module = None, module_names = None, profiler_names = None, is_tracing = None, evaluates_frames = None))]
fn use_fast_calls(
    on: bool,
    module: Option<&Bound<'_, PyType>>,
    module_names: Option<Py<PyDict>>,
    profiler_names: Option<Py<PyDict>>,
    is_tracing: Option<Py<PyAny>>,
    evaluates_frames: Option<Py<PyAny>>,
) -> PyResult<bool> {
    if let (Some(module), Some(module_names), Some(profiler_names), Some(is_tracing), Some(evaluates_frames)) =
        (module, module_names, profiler_names, is_tracing, evaluates_frames)
    {
        let (call, call_impl) = (module.getattr("__call__")?.unbind(), module.getattr("_call_impl")?.unbind());
        let state = symbol(c"_ZN5torch3jit6tracer15getTracingStateEv").unwrap_or(std::ptr::null_mut());
        TRACING.store(state, Ordering::Relaxed);
        TORCH.get_or_init(|| Torch { call, call_impl, module_names, profiler_names, is_tracing, evaluates_frames });
    }
    let on = on && TORCH.get().is_some();
    ON.store(on, Ordering::Relaxed);
    Ok(on)
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(use_fast_calls, module)?)
}
