//! What the operating system says of processes, without their help: stacks ([`stacks`]), how they ended
//! ([`process_exit`]), GPUs ([`gpu`]); and having a process run a statement ([`attach`]).
//!
//! It knows processes by pid, rank and host. It knows nothing of runs, collectors or connections.

pub mod attach;
pub mod gpu;
pub mod process_exit;
pub mod stacks;
