//! Changes torch's dictionaries of hooks, which another thread may be iterating (in a step of an optimizer, or while a module is
//! put into another one): a change during the iteration ends training with "OrderedDict mutated during iteration".
//!
//! Reading the frames of other threads and changing the dictionary run no Python code, so the GIL is held from the one to the
//! other.

use pyo3::intern;
use pyo3::prelude::*;

/// Sets `table[key]` to `hook`, or removes the key where that is None, if no other thread is in code of the file `user` that
/// iterates the table: in `functions` of these names, or anywhere in it where that is None. False where one is, and
/// nothing was changed.
#[pyfunction]
fn change_hook_table(
    table: &Bound<'_, PyAny>,
    key: &Bound<'_, PyAny>,
    hook: &Bound<'_, PyAny>,
    user: &Bound<'_, PyAny>,
    functions: Option<Vec<String>>,
) -> PyResult<bool> {
    let py = table.py();
    let gc = py.import(intern!(py, "gc"))?;
    // A collection runs finalizers, in which another thread may get the GIL.
    let collects = gc.call_method0(intern!(py, "isenabled"))?.is_truthy()?;
    gc.call_method0(intern!(py, "disable"))?;
    let changed = change(table, key, hook, user, functions.as_deref());
    if collects {
        gc.call_method0(intern!(py, "enable"))?;
    }
    changed
}

fn change(
    table: &Bound<'_, PyAny>,
    key: &Bound<'_, PyAny>,
    hook: &Bound<'_, PyAny>,
    user: &Bound<'_, PyAny>,
    functions: Option<&[String]>,
) -> PyResult<bool> {
    if is_used(table.py(), user, functions)? {
        return Ok(false);
    }
    if hook.is_none() {
        table.del_item(key)?
    } else {
        table.set_item(key, hook)?
    }
    Ok(true)
}

/// Whether a thread other than this one is in code of the file `user`, in a function of one of these names.
fn is_used(py: Python<'_>, user: &Bound<'_, PyAny>, functions: Option<&[String]>) -> PyResult<bool> {
    let own = super::thread::identifier();
    let frames = py.import(intern!(py, "sys"))?.call_method0(intern!(py, "_current_frames"))?;
    for item in frames.call_method0(intern!(py, "items"))?.try_iter()? {
        let (thread, mut frame): (u64, Bound<'_, PyAny>) = item?.extract()?;
        while thread != own && !frame.is_none() {
            let code = frame.getattr(intern!(py, "f_code"))?;
            if code.getattr(intern!(py, "co_filename"))?.eq(user)? {
                let name: String = code.getattr(intern!(py, "co_name"))?.extract()?;
                if functions.is_none_or(|functions| functions.contains(&name)) {
                    return Ok(true);
                }
            }
            frame = frame.getattr(intern!(py, "f_back"))?;
        }
    }
    Ok(false)
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(change_hook_table, module)?)
}
