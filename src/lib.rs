//! `probe`: SQL and Python inside a live PyTorch training run.
//!
//! The collector ([`collector`], [`eval`], [`server`]) keeps what agents send in a [`store`], answers SQL over it
//! ([`query`]) and brokers snippets. Commands ([`cli`]) reach it, or a run's directory, through [`client`].

mod attach;
pub mod auth;
pub mod cli;
pub mod client;
pub mod collector;
pub mod compare;
mod crash;
mod diagnose;
mod durable;
pub mod endpoint;
mod ends;
pub mod error;
pub mod eval;
mod fault;
mod gpu;
mod hang;
mod journal;
pub mod output;
pub mod paths;
pub mod query;
pub mod runs;
pub mod server;
mod stacks;
pub mod store;
