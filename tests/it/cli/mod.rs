//! The `probe` binary as people use it: a recorded run, a collector that answers as told, terminals, pipes and signals.

pub(crate) mod support;

mod across;
mod alarms;
mod causes;
mod compare;
mod counts_of_steps;
mod crashes;
mod diagnose;
mod diagnose_collectives;
mod diagnose_devices;
mod diagnose_loaders;
mod diagnose_pages;
mod doors;
mod dumps;
mod errors;
mod export;
mod files;
mod findings;
mod formats;
mod import;
mod launcher;
mod live;
mod memory;
mod native;
mod pages;
mod profile;
mod run;
mod runs;
mod sampled_lines;
mod stacks;
mod suspicions;
mod terminal;
mod uids;
mod versions;
mod waiting;
mod watch;
