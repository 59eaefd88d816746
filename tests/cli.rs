//! The `probe` binary as people use it: a recorded run, a collector that answers as told, terminals, pipes and signals.

// A test that can't go on fails.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "cli/support.rs"]
mod support;

#[path = "cli/across.rs"]
mod across;
#[path = "cli/compare.rs"]
mod compare;
#[path = "cli/crashes.rs"]
mod crashes;
#[path = "cli/doors.rs"]
mod doors;
#[path = "cli/errors.rs"]
mod errors;
#[path = "cli/files.rs"]
mod files;
#[path = "cli/formats.rs"]
mod formats;
#[path = "cli/live.rs"]
mod live;
#[path = "cli/native.rs"]
mod native;
#[path = "cli/pages.rs"]
mod pages;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/runs.rs"]
mod runs;
#[path = "cli/stacks.rs"]
mod stacks;
#[path = "cli/terminal.rs"]
mod terminal;
#[path = "cli/uids.rs"]
mod uids;
#[path = "cli/versions.rs"]
mod versions;
#[path = "cli/watch.rs"]
mod watch;

// The rows are those of the SQL tests.
#[allow(dead_code)]
#[path = "sql/data.rs"]
mod data;
