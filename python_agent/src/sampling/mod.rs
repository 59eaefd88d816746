//! Figures of the operating system, read by the background thread: `process.metrics` once a second, and the host's rows of
//! `python.memory`. It never takes the GIL, and training's threads have no part in it.

mod cgroup;
mod children;
pub(crate) mod environment;
mod proc;
mod sampler;

pub use sampler::{MEMORY, PROCESS, ProcessSampler};
