//! The frames of a running thread, and the local variables of one of them, read so that nothing stays behind.
//!
//! Up to Python 3.12 `frame.f_locals` of a function makes a dictionary that the frame keeps until it returns, and with it the
//! values of the variables at that moment: the activations of one step, for the rest of the run. If the frame had a dictionary
//! already, the program may have it too (`config = locals()`), and reading `f_locals` changes it. So the dictionary is restored:
//! it is emptied if it was made for us, and filled again if it existed before. A field of the frame tells which, at an offset
//! that differs by version and is tested before it is used.
//!
//! All of this happens with the GIL held and runs no Python code, so no other thread sees the dictionary in between.
//! Up to Python 3.11 an allocation may collect garbage. A finalizer in Python then lets another thread run, whose frames end
//! while CPython holds pointers to them, and the interpreter's memory is corrupted: so there is no collection meanwhile.

use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// `inspect.CO_OPTIMIZED`: the flag of the code of a function, whose variables are not kept in a dictionary.
const OPTIMIZED: u64 = 1;

/// The path from a frame to the pointer to its dictionary: at each offset but the last is a pointer to follow.
type PointerPath = &'static [usize];

/// The offsets for a version of CPython, in builds whose objects begin with a count and a type; None where none are needed.
fn offsets(version: (u8, u8)) -> Option<PointerPath> {
    match version {
        (3, 9 | 10) => Some(&[56]),
        (3, 11) => Some(&[24, 24]),
        (3, 12) => Some(&[24, 40]),
        _ => None,
    }
}

/// The address of the dictionary that a frame keeps; null where it has none.
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

/// For the test of the offsets: the address that [`kept_at`] finds, as `id()` returns it.
#[pyfunction]
fn kept(frame: &Bound<'_, PyAny>, offsets: Vec<usize>) -> usize {
    // SAFETY: called by the test of the offsets only, for the version that it runs on: there may be another field than expected,
    // but it lies within the frame, and the value is compared and not followed.
    unsafe { kept_at(frame.as_ptr(), &offsets) as usize }
}

/// Python code that sets `proved`: whether, at these offsets, a frame has no dictionary before `locals()` and that one after it.
const PROOF: &std::ffi::CStr = c"
import sys
def proof():
    frame = sys._getframe()
    before = kept(frame, offsets)
    mine = locals()
    return before == 0 and kept(frame, offsets) == id(mine)
proved = sys.implementation.name == 'cpython' and not hasattr(sys, 'getobjects') and proof()
";

/// The offsets for this interpreter; None where none are needed or the test fails.
fn proved(py: Python<'_>) -> Option<PointerPath> {
    static PROVED: OnceLock<Option<PointerPath>> = OnceLock::new();
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

/// Garbage collection is off while this lives. Code that reads another thread's frames meanwhile must run no Python code.
struct NoCollection<'py> {
    /// `gc.enable`; None where it was off before.
    enable: Option<Bound<'py, PyAny>>,
}

impl<'py> NoCollection<'py> {
    fn new(py: Python<'py>) -> PyResult<Self> {
        let collector = py.import("gc")?;
        let (disable, enable) = (collector.getattr("disable")?, collector.getattr("enable")?);
        let was_on: bool = collector.getattr("isenabled")?.call0()?.extract()?;
        disable.call0()?;
        Ok(Self { enable: was_on.then_some(enable) })
    }
}

impl Drop for NoCollection<'_> {
    fn drop(&mut self) {
        if let Some(enable) = &self.enable {
            // `gc.enable` only sets a flag.
            drop(enable.call0());
        }
    }
}

/// The frames of every thread that runs Python, by `threading.get_ident()`, innermost first.
#[pyfunction]
fn stacks(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let current_frames = py.import("sys")?.getattr("_current_frames")?;
    let back = pyo3::intern!(py, "f_back");
    let stacks = PyDict::new(py);
    let _off = NoCollection::new(py)?;
    for (thread, innermost) in current_frames.call0()?.cast_into::<PyDict>()? {
        let stack = PyList::empty(py);
        let mut frame = innermost;
        while !frame.is_none() {
            stack.append(&frame)?;
            frame = frame.getattr(back)?;
        }
        stacks.set_item(thread, stack)?;
    }
    Ok(stacks)
}

/// A new dictionary of the variables of a frame. The frame itself does not change.
#[pyfunction]
fn frame_locals<'py>(frame: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let py = frame.py();
    let copy = PyDict::new(py);
    let flags: u64 = frame.getattr("f_code")?.getattr("co_flags")?.extract()?;
    let offsets = proved(py).filter(|_| flags & OPTIMIZED != 0);
    let off = NoCollection::new(py)?;
    let Some(offsets) = offsets else {
        // A module's or a class's own names; or from Python 3.13 on, where reading leaves nothing.
        copy.update(frame.getattr("f_locals")?.cast()?)?;
        return Ok(copy);
    };
    // SAFETY: a frame, and the offsets are proved.
    let before = unsafe { Bound::from_borrowed_ptr_or_opt(py, kept_at(frame.as_ptr(), offsets)) };
    let before = before.map(|kept| kept.cast_into::<PyDict>()).transpose()?;
    // The copy keeps alive what reading replaces, so that no finalizer runs while CPython reads.
    let content = before.as_ref().map(|kept| kept.copy()).transpose()?;
    let read = frame.getattr("f_locals")?.cast_into::<PyDict>()?;
    drop(off);
    copy.update(read.as_mapping())?;
    read.clear();
    if let Some(content) = content {
        read.update(content.as_mapping())?;
    }
    Ok(copy)
}

/// Adds this part's functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(stacks, module)?)?;
    module.add_function(wrap_pyfunction!(frame_locals, module)?)
}
