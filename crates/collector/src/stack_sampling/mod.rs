//! The collector's own sampling of main threads (`python.stack_samples`): from outside, by itself, and within a budget of
//! processor time. It has a thread of its own, for which nothing of the collector waits.

mod pace;
mod process;
mod rows;
mod sampler;

pub(crate) use sampler::{StackSampling, is_on};
