//! The innermost line of the program's own code on a thread, by an id.

use std::sync::Mutex;

use probe_trace::symbol_table::LearnedName;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::interned::InternedNames;
use crate::shared;

/// Frames that are searched for one of the program's own code.
const FRAMES: usize = 64;
/// Bytes at the end of a file's path that are kept.
const FILE: usize = 110;

/// Directories of files that are not the program's own code.
static LIBRARIES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The lines of the program that records name. A record has the id plus 1, so that 0 is no line.
static LINES: InternedNames = InternedNames::new(|id, line| LearnedName::Line(id + 1, line));

/// The id of the innermost line of the program's own code on this thread, plus 1; 0 if the thread runs no code of the program.
pub(super) fn id() -> u64 {
    // SAFETY: asks for this thread's own state, which needs no GIL. A thread that has none is not Python's: making one
    // for it might wait for a thread that waits for this one.
    if unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
        return 0;
    }
    // pyo3 assumes that a thread that runs one of its functions has the GIL. Where that function called torch
    // (`probe_agent.log` of a tensor), torch may have released it. So it is requested without pyo3.
    // SAFETY: a thread of Python's, in an interpreter that is there; released below.
    let held = unsafe {
        if ffi::Py_IsInitialized() == 0 {
            return 0;
        }
        ffi::PyGILState_Ensure()
    };
    let found = Python::try_attach(|py| {
        // SAFETY: the GIL is held; an exception that is set stays as it is, and then no Python is called.
        if unsafe { !ffi::PyErr_Occurred().is_null() } {
            return Ok(None);
        }
        innermost(py)
    });
    // SAFETY: `held` is what PyGILState_Ensure returned on the same thread.
    unsafe { ffi::PyGILState_Release(held) };
    match found {
        Some(Ok(Some(line))) => u64::from(line) + 1,
        _ => 0,
    }
}

fn innermost(py: Python<'_>) -> PyResult<Option<u16>> {
    // SAFETY: a borrowed reference, or null where no Python runs.
    let mut frame = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) };
    for _ in 0..FRAMES {
        let Some(here) = frame else { return Ok(None) };
        let file = here.getattr(intern!(py, "f_code"))?.getattr(intern!(py, "co_filename"))?;
        let file = file.cast_into::<PyString>()?;
        let file = file.to_string_lossy();
        if is_own(&file) {
            let line: Option<i32> = here.getattr(intern!(py, "f_lineno"))?.extract()?;
            let start = file.ceil_char_boundary(file.len().saturating_sub(FILE));
            let cut = if start > 0 { "…" } else { "" };
            let text = format!("{cut}{}:{}", &file[start..], line.unwrap_or(0));
            return Ok(LINES.intern(text.as_bytes()));
        }
        frame = here.getattr(intern!(py, "f_back"))?.extract()?;
    }
    Ok(None)
}

fn is_own(file: &str) -> bool {
    let library = |file: &str| shared::lock(&LIBRARIES).iter().any(|path| file.starts_with(path.as_str()));
    !file.starts_with("<frozen")
        && !file.starts_with("<eval_with_key>")
        && !file.contains("/site-packages/")
        && !file.contains("/dist-packages/")
        && !library(file)
}

/// The line of the program that a record names by its id plus 1, as `file:line`.
pub(super) fn text_of(number: u64) -> Option<String> {
    LINES.get(number.checked_sub(1)?)
}

/// Sets the directories of files that are not the program's own code.
pub(super) fn set_libraries(libraries: Vec<String>) {
    *shared::lock(&LIBRARIES) = libraries;
}
