//! Calls of modules past torch's own `__call__`, for programs that ask for it (`PROBE_LAYERS=forward=fast_call`).
//!
//! For a module without hooks `__call__` does nothing but call `forward`, in two Python functions that take several times
//! as long as what the agent adds. Here it is called directly, if everything that these functions examine
//! allows that at the time of the call; otherwise the call goes its usual way. The only difference is a traceback, which lacks
//! their two lines for each module.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use pyo3::{ffi, intern};

use super::libtorch::symbol;

/// What torch's functions examine, as it was when the layer was put in.
struct TorchGlobals {
    /// `Module.__call__`. A class that overrides it is called in the usual way.
    call: Py<PyAny>,
    /// `Module._call_impl`. A class that overrides it is called in the usual way.
    call_impl: Py<PyAny>,
    /// Namespace of `torch.nn.modules.module`, which has the hooks of all modules.
    module_names: Py<PyDict>,
    /// Namespace of `torch.autograd.profiler`.
    profiler_names: Py<PyDict>,
    /// Function that returns whether torch.jit traces.
    is_tracing: Py<PyAny>,
    /// Function that returns what evaluates frames instead of Python (torch.compile), or None.
    evaluates_frames: Py<PyAny>,
}

/// `const std::shared_ptr<TracingState>& getTracingState()` of torch.jit: its first word is null where torch.jit does not trace.
type TracingState = unsafe extern "C" fn() -> *const *const c_void;
/// Torch's function of this type; null: `is_tracing` is called, which takes longer.
static TRACING: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

static TORCH: OnceLock<TorchGlobals> = OnceLock::new();
static ON: AtomicBool = AtomicBool::new(false);

/// Calls `module.forward` if that is all that a call of `module` would do. Returns its result, NULL with its exception included;
/// None where the call has to go its usual way.
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
    // SAFETY: as of the caller; all objects are alive, and an exception that a check sets is cleared.
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

/// The bound `forward`, a new reference; None where more than that is to be called.
unsafe fn forward_of(py: Python<'_>, torch: &TorchGlobals, module: *mut ffi::PyObject) -> Option<*mut ffi::PyObject> {
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
        // A profiler recognises modules by the functions that are left out here.
        let profiler = torch.profiler_names.as_ptr();
        let profiles = ffi::PyDict_GetItemWithError(profiler, intern!(py, "_is_profiler_enabled").as_ptr());
        if profiles != ffi::Py_False() || traces(torch) || !returns(torch.evaluates_frames.as_ptr(), ffi::Py_None()) {
            return None;
        }
        let forward = ffi::PyObject_GetAttr(module, intern!(py, "forward").as_ptr());
        (!forward.is_null()).then_some(forward)
    }
}

/// Whether torch.jit traces on this thread, or that can't be found out.
unsafe fn traces(torch: &TorchGlobals) -> bool {
    let state = TRACING.load(Ordering::Relaxed);
    // SAFETY: as of the caller; torch's function of this name has this signature, and its answer is never null.
    unsafe {
        if state.is_null() {
            return !returns(torch.is_tracing.as_ptr(), ffi::Py_False());
        }
        !std::mem::transmute::<*mut c_void, TracingState>(state)().read().is_null()
    }
}

/// Whether an object's attribute is exactly this one.
unsafe fn is(object: *mut ffi::PyObject, name: *mut ffi::PyObject, expected: *mut ffi::PyObject) -> bool {
    // SAFETY: as of the caller; the reference is released, and only the address is compared.
    unsafe {
        let found = ffi::PyObject_GetAttr(object, name);
        if found.is_null() {
            return false;
        }
        ffi::Py_DecRef(found);
        found == expected
    }
}

/// Whether `dictionary[name]` exists and is an empty dictionary.
unsafe fn is_empty(dictionary: *mut ffi::PyObject, name: *mut ffi::PyObject) -> bool {
    // SAFETY: as of the caller.
    unsafe {
        let found = ffi::PyDict_GetItemWithError(dictionary, name);
        !found.is_null() && ffi::PyDict_Check(found) != 0 && ffi::PyDict_Size(found) == 0
    }
}

unsafe fn is_null_or_none(object: *mut ffi::PyObject) -> bool {
    // SAFETY: None is always there.
    object.is_null() || object == unsafe { ffi::Py_None() }
}

/// Whether a function without arguments returns exactly this object.
unsafe fn returns(function: *mut ffi::PyObject, expected: *mut ffi::PyObject) -> bool {
    // SAFETY: as of the caller.
    unsafe {
        let answer = ffi::PyObject_CallObject(function, std::ptr::null_mut());
        if answer.is_null() {
            return false;
        }
        ffi::Py_DecRef(answer);
        answer == expected
    }
}

/// Switches direct calls of modules on or off. `module`: `torch.nn.Module`. Returns whether they are on.
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
        TORCH.get_or_init(|| TorchGlobals {
            call,
            call_impl,
            module_names,
            profiler_names,
            is_tracing,
            evaluates_frames,
        });
    }
    let on = on && TORCH.get().is_some();
    ON.store(on, Ordering::Relaxed);
    Ok(on)
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(use_fast_calls, module)?)
}
