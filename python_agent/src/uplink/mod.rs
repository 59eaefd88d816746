//! Rows and commands between this process and the collector, on one background thread that never takes the GIL.
//!
//! [`record_source`] drains recording into rows, [`buffer`] keeps the batches that the collector has not acknowledged, and [`outbox`]
//! holds everything that is to be sent. [`session`] is one connection from Hello to its end, and [`fitting`] replaces messages
//! that are larger than the collector accepts. [`thread`] connects again and again and ends with a flush, and [`starter`] starts
//! and wakes it with the [`settings`] that Python makes. [`commands`] passes snippets to Python and their output back, [`snippet_words`] are the contract's words for
//! them, and [`python`] is what `probe_agent` calls.

pub mod buffer;
pub mod commands;
pub mod connect;
mod fitting;
pub mod link;
pub mod outbox;
pub mod python;
pub mod record_source;
mod resolve;
pub mod revive;
pub mod session;
pub mod settings;
pub mod snippet_words;
pub mod starter;
pub mod status;
mod thread;

pub use python::register;
