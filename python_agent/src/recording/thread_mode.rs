//! [`ThreadMode`]: what a thread does with events on it, for Python.

use pyo3::prelude::*;

use super::thread::{BESIDE, RECORD, SUSPENDED, TESTING};

/// What a thread does with events on it.
#[pyclass(frozen, eq, from_py_object, module = "probe_agent._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadMode(pub(super) u8);

#[pymethods]
impl ThreadMode {
    /// The thread records.
    #[classattr]
    const RECORD: Self = Self(RECORD);
    /// The thread runs a snippet between two steps: records nothing, nor do autograd's threads, and the time is taken out of the
    /// step.
    #[classattr]
    const SUSPENDED: Self = Self(SUSPENDED);
    /// The thread runs a snippet beside training: records nothing, and must not train.
    #[classattr]
    const BESIDE: Self = Self(BESIDE);
    /// The thread tests the layers: events are counted and not recorded.
    #[classattr]
    const TESTING: Self = Self(TESTING);
}

/// Adds this file's class to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ThreadMode>()
}
