//! The shape of the first tensor given to an outermost call, so that dynamic shapes are explainable.
//!
//! A tensor in a dictionary argument counts too, because dictionaries hold whole batches by name. One in a list or tuple does not:
//! detection models take a list of images, and the first dimension of an image is not the size of the batch.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::clock::ticks;
use super::libtorch::{self, HiddenFromModes};
use super::thread::ThreadState;
use probe_trace::payload::{MANY_VMAPPED, SHAPE_COUNT, SHAPE_DIMENSIONS as DIMENSIONS, VMAPPED};
use probe_trace::record::{RecordKind, RingRecord};

/// `torch.Tensor` and `torch.nn.Parameter`, kept alive. Subclasses are left alone: asking one for its shape may run
/// code of its own.
static TENSOR: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());
static PARAMETER: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());

/// Records the shape of the first positional argument that is a tensor, else of the first keyword argument that is, else of the
/// first tensor in a dictionary among the positional arguments.
#[cold]
pub(super) fn record(state: &ThreadState, args: *mut ffi::PyObject, kwargs: *mut ffi::PyObject) {
    let mut dimensions = [0_u32; DIMENSIONS];
    let _hidden = HiddenFromModes::new();
    // SAFETY: called with the GIL held and no exception set, with the tuple and the dict (or NULL) of a call.
    let (count, vmapped) = unsafe {
        let tensor = first_tensor(args, kwargs);
        if tensor.is_null() { (None, 0) } else { (shape_of(tensor, &mut dimensions), vmapped(tensor)) }
    };
    let Some(count) = count else { return };
    for first in (0..count.clamp(1, DIMENSIONS)).step_by(4) {
        let at = |index: usize| u64::from(dimensions.get(first + index).copied().unwrap_or_default());
        let payload = vmapped << VMAPPED | (count << SHAPE_COUNT | first) as u64;
        let record = RingRecord::new(RecordKind::Shape, payload, ticks(), at(0) | at(1) << 32, at(2) | at(3) << 32);
        state.write_required(record);
    }
}

/// Whether `object` is a plain tensor: neither its shape nor any other attribute runs code other than torch's.
#[inline]
pub(super) unsafe fn is_tensor(object: *mut ffi::PyObject) -> bool {
    let (tensor, parameter) = (TENSOR.load(Ordering::Relaxed), PARAMETER.load(Ordering::Relaxed));
    // SAFETY: `object` is alive.
    let class = unsafe { ffi::Py_TYPE(object) }.cast::<ffi::PyObject>();
    !class.is_null() && (class == tensor || class == parameter)
}

/// An attribute of a plain tensor as a number; None, and no exception set, where it is not a number.
pub(super) unsafe fn integer(tensor: *mut ffi::PyObject, name: &std::ffi::CStr) -> Option<u64> {
    // SAFETY: a living tensor; the new reference is released, an error cleared.
    unsafe {
        let value = ffi::PyObject_GetAttrString(tensor, name.as_ptr());
        if value.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        // Symbolic numbers are left alone: asking one for its value would change what is being traced.
        let number = if ffi::PyLong_CheckExact(value) != 0 { ffi::PyLong_AsLongLong(value) } else { -1 };
        ffi::Py_DECREF(value);
        if !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear();
        }
        u64::try_from(number).ok()
    }
}

/// The number of dimensions of a plain tensor, and the first ones.
pub(super) unsafe fn dimensions(tensor: *mut ffi::PyObject) -> Option<(usize, [u32; DIMENSIONS])> {
    let mut dimensions = [0; DIMENSIONS];
    // SAFETY: as of the caller.
    let count = unsafe { shape_of(tensor, &mut dimensions) }?;
    Some((count, dimensions))
}

/// The size of the first dimension of a plain tensor; None for a scalar, or if the shape can't be read.
pub(super) unsafe fn first_dimension(tensor: *mut ffi::PyObject) -> Option<u32> {
    // SAFETY: as of the caller.
    let (count, dimensions) = unsafe { dimensions(tensor) }?;
    (count > 0).then_some(dimensions[0])
}

/// The tensor whose shape [`record`] records. A borrowed reference, or NULL.
unsafe fn first_tensor(args: *mut ffi::PyObject, kwargs: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: `args` is a tuple and `kwargs` NULL or a dict: both as the interpreter made them for a call.
    unsafe {
        for index in 0..ffi::PyTuple_Size(args) {
            let item = ffi::PyTuple_GetItem(args, index);
            if is_tensor(item) {
                return item;
            }
        }
        if !kwargs.is_null() {
            let tensor = first_value(kwargs);
            if !tensor.is_null() {
                return tensor;
            }
        }
        for index in 0..ffi::PyTuple_Size(args) {
            let item = ffi::PyTuple_GetItem(args, index);
            let tensor = if ffi::PyDict_Check(item) != 0 { first_value(item) } else { std::ptr::null_mut() };
            if !tensor.is_null() {
                return tensor;
            }
        }
    }
    std::ptr::null_mut()
}

/// The first value of a dictionary that is a tensor. A borrowed reference, or NULL.
unsafe fn first_value(dictionary: *mut ffi::PyObject) -> *mut ffi::PyObject {
    let (mut position, mut value) = (0, std::ptr::null_mut());
    // SAFETY: a living dictionary, which nothing changes meanwhile: no code of the program runs.
    unsafe {
        while ffi::PyDict_Next(dictionary, &raw mut position, std::ptr::null_mut(), &raw mut value) != 0 {
            if is_tensor(value) {
                return value;
            }
        }
    }
    std::ptr::null_mut()
}

/// Returns the number of dimensions, and stores the first ones in `dimensions`. None, and no exception set, where the shape is
/// not plain numbers: reading the value of a symbolic one would change what is being traced.
unsafe fn shape_of(tensor: *mut ffi::PyObject, dimensions: &mut [u32; DIMENSIONS]) -> Option<usize> {
    // SAFETY: a living tensor; every new reference is released, every error cleared.
    unsafe {
        let shape = ffi::PyObject_GetAttrString(tensor, c"shape".as_ptr());
        if shape.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        let count = ffi::PyTuple_Size(shape).max(0) as usize;
        let mut plain = true;
        for (index, dimension) in dimensions.iter_mut().enumerate().take(count) {
            let item = ffi::PyTuple_GetItem(shape, index as ffi::Py_ssize_t);
            if item.is_null() || ffi::PyLong_CheckExact(item) == 0 {
                plain = false;
                break;
            }
            let value = ffi::PyLong_AsLongLong(item);
            match u32::try_from(value) {
                Ok(value) => *dimension = value,
                Err(_) => plain = false,
            }
        }
        ffi::Py_DECREF(shape);
        if !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear();
            plain = false;
        }
        plain.then_some(count)
    }
}

/// Torch's functions for the tensors that `torch.func` wraps around others. They are native and run no code of the program.
#[derive(Debug)]
struct TransformFunctions {
    is_wrapped: Py<PyAny>,
    is_batched: Py<PyAny>,
    dimension: Py<PyAny>,
    unwrapped: Py<PyAny>,
}

static TRANSFORMS: OnceLock<TransformFunctions> = OnceLock::new();
/// Nested transforms that are unwrapped at most.
const LEVELS: usize = 8;

/// How many tensors `torch.func.vmap` computes at once where one seems to be there, as [`VMAPPED`] encodes it.
unsafe fn vmapped(tensor: *mut ffi::PyObject) -> u64 {
    let Some(transforms) = TRANSFORMS.get() else { return 0 };
    // SAFETY: called with the GIL held, with a living tensor.
    let tensor = unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), tensor) };
    // An error comes from torch, which knows its own tensors: the number is not known then.
    transforms.count(tensor).map_or(MANY_VMAPPED, |count| count.min(MANY_VMAPPED))
}

impl TransformFunctions {
    fn count(&self, mut tensor: Bound<'_, PyAny>) -> PyResult<u64> {
        let py = tensor.py();
        let mut count = 0_u64;
        for _ in 0..LEVELS {
            if !self.is_wrapped.bind(py).call1((&tensor,))?.is_truthy()? {
                return Ok(count);
            }
            let inside = self.unwrapped.bind(py).call1((&tensor,))?;
            if self.is_batched.bind(py).call1((&tensor,))?.is_truthy()? {
                let dimension = self.dimension.bind(py).call1((&tensor,))?;
                let size: u64 = inside.getattr(pyo3::intern!(py, "shape"))?.get_item(dimension)?.extract()?;
                count = count.max(1).saturating_mul(size);
            }
            tensor = inside;
        }
        Ok(MANY_VMAPPED)
    }
}

/// Sets the functions for tensors that `torch.func` wraps: four functions of `torch._C._functorch`.
#[pyfunction]
fn set_tensor_transforms(is_wrapped: Py<PyAny>, is_batched: Py<PyAny>, dimension: Py<PyAny>, unwrapped: Py<PyAny>) {
    TRANSFORMS.get_or_init(|| TransformFunctions { is_wrapped, is_batched, dimension, unwrapped });
}

/// Sets the types of plain tensors: `torch.Tensor` and `torch.nn.Parameter`.
#[pyfunction]
fn set_tensor_types(tensor: &Bound<'_, PyAny>, parameter: &Bound<'_, PyAny>) {
    if TENSOR.load(Ordering::Relaxed).is_null() {
        TENSOR.store(tensor.clone().into_ptr(), Ordering::Relaxed);
        PARAMETER.store(parameter.clone().into_ptr(), Ordering::Relaxed);
        libtorch::find_modes();
    }
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_tensor_transforms, module)?)?;
    module.add_function(wrap_pyfunction!(set_tensor_types, module)?)
}
