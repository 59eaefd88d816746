//! The collector: keeps what the agents of one run send, and answers for it.
//!
//! [`ingest`] takes rows in, [`stream`] reads one agent's stream, [`session`] follows one connection, [`registry`] lists all
//! agents, and [`tables`] makes their SQL tables. [`settings`] and [`governor`] decide what agents record.
//!
//! [`server`] listens and answers clients: queries itself, and other commands through [`control`]. [`eval`] runs snippets in
//! training processes, [`captures`] turns torch.profiler on in them, and [`stack_sampling`] samples their stacks.
//!
//! The crate knows the agents, connections, tokens and processes of its node. It knows no command, no output format and no client:
//! `probe-client` is above it.

pub(crate) mod agent;
pub mod auth;
pub mod background;
mod budget;
mod caller_quota;
mod captures;
mod collector;
mod control;
mod dead_process;
pub mod eval;
pub mod events;
mod finish;
mod flight_recorder;
mod governor;
mod gpus;
mod hang;
pub mod hang_details;
pub mod hang_sentences;
mod hang_stalls;
mod hang_verdict;
mod hello;
mod idle;
mod ingest;
mod inspection_turns;
mod instance;
mod newest_number;
mod pending_collectives;
mod process_exits;
pub(crate) mod recovery;
pub(crate) mod registry;
mod rings;
mod self_ingest;
pub mod server;
mod service;
mod session;
mod settings;
mod shared;
mod slow_steps;
mod stack_sampling;
mod stacks;
mod stop;
mod stream;
mod tables;
#[cfg(test)]
mod tests;
mod truncate;
mod written;

pub use budget::{disk_limit, memory_limit};
pub use collector::{Collector, CollectorOptions};
pub use recovery::open_run;
pub use shared::CollectorState;
