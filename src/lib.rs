//! The `probe` command: SQL and Python inside a live PyTorch training run.
//!
//! Commands ([`cli`]) reach a live run or a recorded run's directory through `probe-client`; what they show is made in
//! [`output`], and by the reports of three of them: `compare`, `crash` and `diagnose`.

mod block_bootstrap;
pub mod cli;
pub mod compare;
mod crash;
mod diagnose;
pub mod output;
pub mod step_window;
