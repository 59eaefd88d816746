//! [`Seconds`]: a time span as Python gives it.

use std::time::Duration;

use pyo3::prelude::*;

/// A time span that Python passes in seconds. A negative one counts as zero, and one of more than 1e9 s as 1e9 s.
#[derive(Debug, Clone, Copy)]
pub struct Seconds(pub Duration);

impl FromPyObject<'_, '_> for Seconds {
    type Error = PyErr;

    fn extract(seconds: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let seconds: f64 = seconds.extract()?;
        Ok(Self(Duration::try_from_secs_f64(seconds.clamp(0.0, 1e9)).unwrap_or_default()))
    }
}
