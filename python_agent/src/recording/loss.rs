//! The loss that `backward()` starts from, in one step of 16: so a loss that is no longer finite is seen even if the program logs
//! nothing. A tensor on a device is not read, because that would wait for the device.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::scalar::{self, Scalar};
use super::shape;
use super::spans;
use crate::shared::STEP;

/// Name of the loss in `python.metrics`.
const NAME: &[u8] = b"torch.loss";
/// Stride of the steps whose loss is recorded.
const EVERY: i64 = 16;
/// The number of a step whose loss is recorded, modulo [`EVERY`]: not one of the first steps, of which many programs have only
/// a few.
const AT: i64 = 8;

/// Records the loss of a call of the engine with these arguments, which accumulates gradients.
pub(super) fn record(args: &Bound<'_, PyTuple>) {
    let step = STEP.load(Ordering::Relaxed);
    if step % EVERY != AT || !spans::records_metrics() {
        return;
    }
    let Ok(tensors) = args.get_item(0).and_then(|argument| Ok(argument.cast_into::<PyTuple>()?)) else { return };
    if tensors.len() != 1 {
        return;
    }
    if let Some(value) = tensors.get_item(0).ok().and_then(|tensor| value(&tensor)) {
        spans::log_metric(NAME, value, step);
    }
}

/// The number of a plain tensor of floating point in host memory.
fn value(tensor: &Bound<'_, PyAny>) -> Option<f64> {
    // SAFETY: a living object.
    if !unsafe { shape::is_tensor(tensor.as_ptr()) } {
        return None;
    }
    match scalar::read(tensor)? {
        Scalar::Float(number) => Some(number),
        Scalar::Int(_) | Scalar::Bool(_) => None,
    }
}
