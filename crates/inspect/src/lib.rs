//! Inspects processes through the operating system, without their help: their stacks ([`stacks`]), how they ended
//! ([`process_exit`]) and GPUs ([`gpu`]); and makes a process run a statement ([`attach`]).
//!
//! The crate knows processes by pid, rank and host. It knows nothing of runs, collectors or connections.

pub mod attach;
pub mod gpu;
pub mod process_exit;
pub mod stacks;
