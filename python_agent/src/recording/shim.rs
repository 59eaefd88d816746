//! Properties of a tensor, read by torch's C shim (`aoti_torch_*` in libtorch_cpu.so), which needs no GIL.
//!
//! Torch 2.5 to 2.7 lack two of the functions; their results are computed from others there.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::libtorch::symbol;
use probe_trace::payload::DEVICES;

/// A function of the shim; null where this torch has none of the name.
type ShimFunction = AtomicPtr<c_void>;

static NUMEL: ShimFunction = AtomicPtr::new(std::ptr::null_mut());
static DTYPE: ShimFunction = AtomicPtr::new(std::ptr::null_mut());
static DEVICE_TYPE: ShimFunction = AtomicPtr::new(std::ptr::null_mut());
static DEVICE_INDEX: ShimFunction = AtomicPtr::new(std::ptr::null_mut());
/// Torch has this from 2.8 on.
static ELEMENT: ShimFunction = AtomicPtr::new(std::ptr::null_mut());
/// Torch has this from 2.8 on.
static CONTIGUOUS: ShimFunction = AtomicPtr::new(std::ptr::null_mut());
/// With `SIZES` and `STRIDES` it replaces `CONTIGUOUS` where torch lacks that.
static DIM: ShimFunction = AtomicPtr::new(std::ptr::null_mut());
static SIZES: ShimFunction = AtomicPtr::new(std::ptr::null_mut());
static STRIDES: ShimFunction = AtomicPtr::new(std::ptr::null_mut());

/// Bytes of an element by `c10::ScalarType`, whose numbers are in saved files and never change: uint8 to complex128, bool,
/// the quantized ones, bfloat16, packed ones and bits, float8, uint16 to uint64. Torch versions with later types have a function
/// for the size.
const ELEMENT_SIZES: [u8; 30] =
    [1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 2, 4, 8];

/// float32's number among dtypes.
pub(super) const FLOAT: i32 = 6;

/// Properties of an at::Tensor.
pub(super) struct ShimTensor {
    pub(super) bytes: i64,
    pub(super) dtype: i32,
    /// Type in the upper four bits, index in the lower.
    pub(super) device: u8,
    pub(super) contiguous: bool,
}

impl ShimTensor {
    /// The properties of the living at::Tensor at `handle`; None where torch does not tell, or before [`find`].
    pub(super) unsafe fn of(handle: *const u8) -> Option<Self> {
        let device_type: i32 = ask(&DEVICE_TYPE, handle)?;
        if usize::try_from(device_type).ok()? >= DEVICES.len() {
            return None;
        }
        let index: i32 = if device_type == 0 { 0 } else { ask(&DEVICE_INDEX, handle)? };
        let (numel, dtype): (i64, i32) = (ask(&NUMEL, handle)?, ask(&DTYPE, handle)?);
        let bytes = numel.checked_mul(element_size(dtype)?)?;
        let contiguous =
            if CONTIGUOUS.load(Ordering::Relaxed).is_null() { by_strides(handle)? } else { ask(&CONTIGUOUS, handle)? };
        Some(Self { bytes, dtype, device: (device_type as u8) << 4 | index.clamp(0, 14) as u8, contiguous })
    }

    /// Whether the tensor has these properties, and is on the CPU.
    pub(super) fn is(&self, bytes: i64, dtype: i32, contiguous: bool) -> bool {
        (self.bytes, self.dtype, self.device, self.contiguous) == (bytes, dtype, 0, contiguous)
    }
}

fn element_size(dtype: i32) -> Option<i64> {
    let function = ELEMENT.load(Ordering::Relaxed);
    if function.is_null() {
        return ELEMENT_SIZES.get(usize::try_from(dtype).ok()?).map(|size| i64::from(*size));
    }
    // SAFETY: aoti_torch_dtype_element_size, with a number that aoti_torch_get_dtype returned.
    let size = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i32) -> usize>(function)(dtype) };
    i64::try_from(size).ok()
}

/// Whether elements lie in rows without gaps, as torch's own `is_contiguous` says.
fn by_strides(handle: *const u8) -> Option<bool> {
    let dim = usize::try_from(ask::<i64>(&DIM, handle)?).ok()?;
    let (sizes, strides): (usize, usize) = (ask(&SIZES, handle)?, ask(&STRIDES, handle)?);
    let mut expected = 1;
    let mut contiguous = true;
    for dimension in (0..dim).rev() {
        // SAFETY: the shim's pointers to as many numbers as there are dimensions, in the tensor, which lives.
        let (size, stride) =
            unsafe { ((sizes as *const i64).add(dimension).read(), (strides as *const i64).add(dimension).read()) };
        if size == 0 {
            return Some(true);
        }
        contiguous &= size == 1 || stride == expected;
        expected = i64::wrapping_mul(expected, size);
    }
    Some(contiguous)
}

/// Calls a function of the shim, `int32_t f(AtenTensorHandle, T *)`, which returns 0 for success.
fn ask<T: Default>(function: &ShimFunction, handle: *const u8) -> Option<T> {
    let function = function.load(Ordering::Relaxed);
    if function.is_null() {
        return None;
    }
    let mut answer = T::default();
    // SAFETY: a function of the shim of this type, and a living at::Tensor.
    let failed = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const u8, *mut T) -> i32>(function)(
            handle,
            &mut answer,
        )
    };
    (failed == 0).then_some(answer)
}

/// Finds the functions. The error is the name of one that is missing and can't be replaced.
pub(super) fn find() -> Result<(), &'static CStr> {
    let look = |function: &ShimFunction, name: &'static CStr| {
        let found = symbol(name);
        function.store(found.unwrap_or(std::ptr::null_mut()), Ordering::Relaxed);
        found.map(drop).ok_or(name)
    };
    for (function, name) in [
        (&NUMEL, c"aoti_torch_get_numel"),
        (&DTYPE, c"aoti_torch_get_dtype"),
        (&DEVICE_TYPE, c"aoti_torch_get_device_type"),
        (&DEVICE_INDEX, c"aoti_torch_get_device_index"),
    ] {
        look(function, name)?;
    }
    // A torch without this function has no dtypes beyond `ELEMENT_SIZES`.
    let _ = look(&ELEMENT, c"aoti_torch_dtype_element_size");
    if look(&CONTIGUOUS, c"aoti_torch_is_contiguous").is_err() {
        look(&DIM, c"aoti_torch_get_dim")?;
        look(&SIZES, c"aoti_torch_get_sizes")?;
        look(&STRIDES, c"aoti_torch_get_strides")?;
    }
    Ok(())
}
