//! The `probe` binary as people use it: a recorded run, a collector that answers as told, terminals, pipes and signals.

#[path = "cli/support.rs"]
mod support;

#[path = "cli/errors.rs"]
mod errors;
#[path = "cli/formats.rs"]
mod formats;
#[path = "cli/live.rs"]
mod live;
#[path = "cli/pages.rs"]
mod pages;
#[path = "cli/terminal.rs"]
mod terminal;

// The rows are those of the SQL tests.
#[allow(dead_code)]
#[path = "sql/data.rs"]
mod data;
