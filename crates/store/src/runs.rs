//! Recorded runs: each has a directory below `runs/`, named `gpt@1`, `gpt@2`, … in the order in which they began.

mod git;
mod info;
mod list;
mod lost;
mod name_lock;
mod remove;
mod reserve;
mod rfc3339;
mod steps;
mod writer_lock;

pub use info::{RunInfo, RunState};
pub use list::{RecordedRun, is_live, list_runs, list_runs_in, resolve, resolve_in};
pub use lost::reached;
pub use remove::{directory_bytes, ended, file_bytes, named_runs, remove, sweep, why_it_stays};
pub use reserve::RunReservation;
pub use steps::{ReachedSteps, last_step};
