//! The one number of a tensor in host memory. It is read from its address, because the program's profilers and modes would see an
//! operation.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use super::libtorch::HiddenFromModes;

/// A number as tensors have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scalar {
    Float(f64),
    Int(i64),
    Bool(bool),
}

/// The one number of a plain tensor in host memory; None where it has another count, or a type that is not read.
pub(super) fn read(tensor: &Bound<'_, PyAny>) -> Option<Scalar> {
    let py = tensor.py();
    let _hidden = HiddenFromModes::new();
    if !is_on_host(tensor) {
        return None;
    }
    let count: u64 = tensor.call_method0(intern!(py, "numel")).ok()?.extract().ok()?;
    // Such a tensor has the number with the other sign in its memory.
    let is_negated: bool = tensor.call_method0(intern!(py, "is_neg")).ok()?.extract().ok()?;
    if count != 1 || is_negated {
        return None;
    }
    let kind = dtype_name(&tensor.getattr(intern!(py, "dtype")).ok()?).ok()?;
    let address: usize = tensor.call_method0(intern!(py, "data_ptr")).ok()?.extract().ok()?;
    if address == 0 {
        return None;
    }
    // SAFETY: `data_ptr` is where a tensor in host memory, which is alive, has its one element of that type.
    unsafe {
        Some(match kind.as_str() {
            "float32" => Scalar::Float(f64::from((address as *const f32).read_unaligned())),
            "float64" => Scalar::Float((address as *const f64).read_unaligned()),
            // The upper half of a float32.
            "bfloat16" => {
                let bits = u32::from((address as *const u16).read_unaligned()) << 16;
                Scalar::Float(f64::from(f32::from_bits(bits)))
            }
            "int64" => Scalar::Int((address as *const i64).read_unaligned()),
            "int32" => Scalar::Int(i64::from((address as *const i32).read_unaligned())),
            "bool" => Scalar::Bool((address as *const u8).read() != 0),
            _ => return None,
        })
    }
}

/// What `tensor.item()` returns, for a plain tensor in host memory.
pub(super) fn item<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    Ok(match read(tensor) {
        Some(Scalar::Float(number)) => PyFloat::new(py, number).into_any(),
        Some(Scalar::Int(number)) => PyInt::new(py, number).into_any(),
        Some(Scalar::Bool(is)) => PyBool::new(py, is).to_owned().into_any(),
        None => {
            let _hidden = HiddenFromModes::new();
            return tensor.call_method0(intern!(py, "item"));
        }
    })
}

/// The name of a dtype: float32. `str` gives it too, but runs the handlers of pending signals first, and what one raises would be
/// lost here.
pub(super) fn dtype_name(dtype: &Bound<'_, PyAny>) -> PyResult<String> {
    dtype.call_method0(intern!(dtype.py(), "__reduce__"))?.extract()
}

/// Whether a plain tensor is in host memory.
pub(super) fn is_on_host(tensor: &Bound<'_, PyAny>) -> bool {
    let _hidden = HiddenFromModes::new();
    tensor.getattr(intern!(tensor.py(), "is_cpu")).and_then(|is| is.extract()).unwrap_or(false)
}
