//! The collector as agents and commands meet it: a real one on a real socket, and agents played by the test.

// A test that can't go on fails.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "collector/config.rs"]
mod config;
#[path = "collector/damage.rs"]
mod damage;
#[path = "collector/doors.rs"]
mod doors;
#[path = "collector/ending.rs"]
mod ending;
#[path = "collector/eval.rs"]
mod eval;
#[path = "collector/heavy.rs"]
mod heavy;
#[path = "collector/ingest.rs"]
mod ingest;
#[path = "collector/support.rs"]
mod support;
