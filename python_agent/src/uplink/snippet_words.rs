//! The contract's words for snippets, as Python has them: `At.NOW`, `Outcome.CANCELLED`.

use probe_proto::v1;
use pyo3::prelude::*;

/// Where a snippet runs.
#[pyclass(frozen, eq, from_py_object, module = "probe_agent._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At(pub v1::At);

#[pymethods]
impl At {
    #[classattr]
    const AUTO: Self = Self(v1::At::Auto);
    #[classattr]
    const NOW: Self = Self(v1::At::Now);
    #[classattr]
    const STEP: Self = Self(v1::At::Step);

    fn __str__(&self) -> &'static str {
        self.0.as_str()
    }
}

/// How a snippet ended.
#[pyclass(frozen, eq, from_py_object, module = "probe_agent._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome(pub v1::Outcome);

#[pymethods]
impl Outcome {
    #[classattr]
    const OK: Self = Self(v1::Outcome::Ok);
    #[classattr]
    const ERROR: Self = Self(v1::Outcome::Error);
    #[classattr]
    const TIMEOUT: Self = Self(v1::Outcome::Timeout);
    #[classattr]
    const OUTPUT_LIMIT: Self = Self(v1::Outcome::OutputLimit);
    #[classattr]
    const NO_BOUNDARY: Self = Self(v1::Outcome::NoBoundary);
    #[classattr]
    const REFUSED: Self = Self(v1::Outcome::Refused);
    #[classattr]
    const CANCELLED: Self = Self(v1::Outcome::Cancelled);

    fn __str__(&self) -> &'static str {
        self.0.as_str()
    }
}
