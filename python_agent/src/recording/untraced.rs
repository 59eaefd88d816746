//! Hides Python code of the agent from the profilers and tracers that the program has set: `sys.setprofile` (cProfile),
//! `sys.settrace` (coverage, debuggers) and `sys.monitoring`.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use pyo3::ffi::{self, PyThreadState};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

type TracingSwitch = unsafe extern "C" fn(*mut PyThreadState);

/// `PyThreadState_EnterTracing` and `PyThreadState_LeaveTracing`; None before Python 3.11, which does not have them.
static SWITCHES: OnceLock<Option<(TracingSwitch, TracingSwitch)>> = OnceLock::new();

/// While this value lives, profilers and tracers do not see the calling thread. Python disables them in the same way while it
/// calls one.
pub(super) struct Untraced<'py> {
    end: Option<(*mut PyThreadState, TracingSwitch)>,
    _py: Python<'py>,
}

impl<'py> Untraced<'py> {
    pub(super) fn new(py: Python<'py>) -> Self {
        let switches =
            SWITCHES.get_or_init(|| switch(c"PyThreadState_EnterTracing").zip(switch(c"PyThreadState_LeaveTracing")));
        let end = switches.map(|(enter, leave)| {
            // SAFETY: the GIL is held, so this is the calling thread's state.
            unsafe {
                let state = ffi::PyThreadState_Get();
                enter(state);
                (state, leave)
            }
        });
        Self { end, _py: py }
    }
}

impl Drop for Untraced<'_> {
    fn drop(&mut self) {
        if let Some((state, leave)) = self.end {
            // SAFETY: the state of this thread, which holds the GIL again, and is still in what `new` began.
            unsafe { leave(state) };
        }
    }
}

fn switch(name: &CStr) -> Option<TracingSwitch> {
    // SAFETY: a name that ends in a zero byte; the interpreter is loaded. Both functions have this signature in every release.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, TracingSwitch>(found))
    }
}

/// Calls `function` with these arguments, unseen.
#[pyfunction]
#[pyo3(signature = (function, args, kwargs))]
fn run_untraced<'py>(
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let _untraced = Untraced::new(function.py());
    function.call(args, Some(kwargs))
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_untraced, module)?)
}
