//! The `probe` command: SQL and Python inside a live PyTorch training run.
//!
//! Commands ([`cli`]) reach a live run or a recorded run's directory through `probe-client`; what they show is made in
//! [`output`] and by the reports of two of them, `compare` and `crash`.

pub mod cli;
pub mod compare;
mod crash;
mod diagnose;
pub mod output;
