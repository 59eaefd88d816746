//! The collector as agents and commands meet it: a real one on a real socket, and agents played by the test.

mod auth;
mod config;
mod damage;
mod ending;
mod eval;
mod heavy;
mod hostile;
mod hostile_statements;
mod ingest;
mod ingest_waits;
pub(crate) mod support;
