//! The local variables of a running frame, read so that nothing stays behind.
//!
//! Up to Python 3.12 `frame.f_locals` of a function makes a dictionary that the frame keeps until it returns, and with it
//! whatever the variables held at that moment: the activations of one step, for the rest of the run. Where the frame had a
//! dictionary already, the program may have it too (`config = locals()`), and the look changes it. So the dictionary is
//! brought back to what it was: emptied where it was made for us, and filled again where it was there. Which of the two it
//! is only the frame knows, at an offset that differs by version and is proved before it is used.
//!
//! All of it happens while the GIL is held and runs no Python code, so nobody sees the dictionary in between.

use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// `inspect.CO_OPTIMIZED`: a function's frame, whose variables are not in a dictionary by themselves.
const OPTIMIZED: u64 = 1;

/// Where a frame has its dictionary: behind these offsets, the first ones of pointers to follow.
type Offsets = &'static [usize];

/// By version of CPython, of builds whose objects begin with a count and a type.
fn offsets(version: (u8, u8)) -> Option<Offsets> {
    match version {
        (3, 9 | 10) => Some(&[56]),
        (3, 11) => Some(&[24, 24]),
        (3, 12) => Some(&[24, 40]),
        _ => None,
    }
}

/// Address of the dictionary that a frame keeps; null where it has none.
///
/// # Safety
/// `frame` is a frame of an interpreter whose frames are laid out so.
unsafe fn kept_at(frame: *mut ffi::PyObject, offsets: &[usize]) -> *mut ffi::PyObject {
    let mut at = frame.cast::<u8>();
    for offset in offsets {
        if at.is_null() {
            break;
        }
        // SAFETY: as the caller says, there is a pointer.
        at = unsafe { at.add(*offset).cast::<*mut u8>().read() };
    }
    at.cast()
}

/// For the proof: what [`kept_at`] finds, as `id()` would say it.
#[pyfunction]
fn kept(frame: &Bound<'_, PyAny>, offsets: Vec<usize>) -> usize {
    // SAFETY: asked by the proof only, for the version that it runs on: what is there may be another field than is thought,
    // but it lies within the frame, and what is found is compared and not followed.
    unsafe { kept_at(frame.as_ptr(), &offsets) as usize }
}

/// Whether a frame has no dictionary before `locals()` and that one after it, at these offsets.
const PROOF: &std::ffi::CStr = c"
import sys
def proof():
    frame = sys._getframe()
    before = kept(frame, offsets)
    mine = locals()
    return before == 0 and kept(frame, offsets) == id(mine)
proved = sys.implementation.name == 'cpython' and not hasattr(sys, 'getobjects') and proof()
";

/// The offsets of this interpreter, once they are proved.
fn proved(py: Python<'_>) -> Option<Offsets> {
    static PROVED: OnceLock<Option<Offsets>> = OnceLock::new();
    if let Some(known) = PROVED.get() {
        return *known;
    }
    let version = py.version_info();
    let found = offsets((version.major, version.minor)).filter(|offsets| {
        let prove = || -> PyResult<bool> {
            let names = PyDict::new(py);
            names.set_item("kept", wrap_pyfunction!(kept, py)?)?;
            names.set_item("offsets", offsets.to_vec())?;
            py.run(PROOF, Some(&names), None)?;
            names.get_item("proved")?.map_or(Ok(false), |proved| proved.is_truthy())
        };
        prove().unwrap_or(false)
    });
    *PROVED.get_or_init(|| found)
}

/// A new dictionary of the variables of a frame, which is as it was before.
#[pyfunction]
fn frame_locals<'py>(frame: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let py = frame.py();
    let copy = PyDict::new(py);
    let flags: u64 = frame.getattr("f_code")?.getattr("co_flags")?.extract()?;
    let offsets = proved(py).filter(|_| flags & OPTIMIZED != 0);
    let Some(offsets) = offsets else {
        // A module's or a class's own names; or from Python 3.13 on, where reading leaves nothing.
        copy.update(frame.getattr("f_locals")?.cast()?)?;
        return Ok(copy);
    };
    // SAFETY: a frame, and the offsets are proved.
    let before = unsafe { Bound::from_borrowed_ptr_or_opt(py, kept_at(frame.as_ptr(), offsets)) };
    let before = before.map(|kept| kept.cast_into::<PyDict>()).transpose()?;
    let content = before.as_ref().map(|kept| kept.copy()).transpose()?;
    let read = frame.getattr("f_locals")?.cast_into::<PyDict>()?;
    copy.update(read.as_mapping())?;
    read.clear();
    if let Some(content) = content {
        read.update(content.as_mapping())?;
    }
    Ok(copy)
}

/// Adds this part's functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(frame_locals, module)?)
}
