//! Texts of Python that are to be sent: they may contain halves of surrogate pairs, which UTF-8 lacks, and have any length.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice, PyString};

/// The first `LONGEST` characters of a Python string, with `\udc80` for half of a pair, as Python writes it to standard error.
#[derive(Debug, Clone, Default)]
pub struct PythonText<const LONGEST: usize>(pub String);

impl<'py, const LONGEST: usize> FromPyObject<'_, 'py> for PythonText<LONGEST> {
    type Error = PyErr;

    fn extract(words: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let words = words.cast::<PyString>()?;
        let length = words.len()?;
        let start = words.get_item(PySlice::new(words.py(), 0, LONGEST as isize, 1))?;
        let bytes = start.call_method1("encode", ("utf-8", "backslashreplace"))?.cast_into::<PyBytes>()?;
        let mut text = String::from_utf8_lossy(bytes.as_bytes()).into_owned();
        if length > LONGEST {
            text += &format!("... ({} more characters)", length - LONGEST);
        }
        Ok(Self(text))
    }
}
