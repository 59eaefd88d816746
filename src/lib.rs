//! The `probe` command: SQL and Python inside a live PyTorch training run.
//!
//! Commands ([`cli`]) reach a live run or a recorded run's directory through `probe-client`. What they show is made in
//! [`output`], and by the reports of some of them: `compare`, `crash`, `diagnose`, `export`, `hang` and `profile`.
//!
//! The crate knows arguments, terminals, output formats and exit codes, and no other crate knows them. It gets rows by SQL alone:
//! it knows neither the stream of an agent nor the files of a store.

mod block_bootstrap;
pub mod cli;
pub mod compare;
mod crash;
mod diagnose;
mod export;
mod hang;
pub mod output;
mod profile;
mod replaced_tables;
mod shared_steps;
mod small_rows;
pub mod step_window;
mod unique_pids;
mod why_no_step;
