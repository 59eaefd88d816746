//! Attributes of the program's objects.

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::program_errors::is_of_program;

/// The value of `result`; None where it is an error of ours, which training must not see. Errors of the program, such as Ctrl-C,
/// are returned.
pub(super) fn hide_own_errors<T>(py: Python<'_>, result: PyResult<T>) -> PyResult<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_of_program(py, &error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// An attribute.
pub(super) fn attribute<'py>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(hide_own_errors(object.py(), object.getattr_opt(name))?.flatten())
}

/// An attribute as a number.
pub(super) fn number(object: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> PyResult<Option<u64>> {
    Ok(hide_own_errors(object.py(), object.getattr_opt(name))?.flatten().and_then(|value| value.extract().ok()))
}
