//! Rows and commands between this process and the collector, on a background thread.

use pyo3::prelude::*;

/// Adds this part's functions to the module.
pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
