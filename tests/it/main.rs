//! Everything that is tested from outside a crate: one binary, because each would link DataFusion for itself.

// A test that can't go on fails.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod cli;
mod collector;
mod fuzz;
mod sql;
