//! What runs on training's threads: slots, callbacks, rings.

use pyo3::prelude::*;

/// Adds this part's functions to the module.
pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
