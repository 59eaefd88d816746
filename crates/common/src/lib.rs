//! Code that every layer may use: errors, names of runs, directories and sockets, durable files, the clock, priorities of threads, names
//! of collectives.
//!
//! This crate uses the operating system and the names in `probe-proto`, and nothing of rows, runs' contents, queries or clients.

pub mod clock;
pub mod collectives;
pub mod durable;
pub mod error;
pub mod fault;
pub mod interval_env;
pub mod panics;
pub mod paths;
pub mod priority;
pub mod run_name;
pub mod sizes;
pub mod user_code;
pub mod wait_cycle;
