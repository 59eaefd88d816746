//! `probe runs`: recorded runs.

use std::fs;
use std::path::Path;

use super::{Status, report};
use crate::error::Result;
use crate::output::{Format, rows};
use crate::runs::{self, Run};

/// List recorded runs, the newest last
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  probe runs
  probe runs --format json
  probe gpt@1 query \"SELECT COUNT(*) FROM python.steps\"    # asks a run that has ended")]
pub(super) struct Args {
    /// How the list looks
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) fn run(args: Args) -> Result<Status> {
    let all = runs::list_runs()?;
    if all.is_empty() && args.format == Format::Table {
        report::note("no run has been recorded yet");
        report::hint("probe run -- python train.py records one");
        return Ok(0);
    }
    let nanoseconds = |time: jiff::Timestamp| i64::try_from(time.as_nanosecond()).ok();
    let seconds = |run: &Run| Some(run.info.ended?.duration_since(run.info.started).as_secs_f64());
    // Without a process group there is one rank, which has no number.
    let ranks = |run: &Run| run.info.ranks.len().max(usize::from(run.info.agents > 0)) as i64;
    let columns = vec![
        ("run", rows::text(all.iter().map(|run| Some(run.name.to_string())))),
        ("state", rows::text(all.iter().map(|run| Some(run.info.state.as_str())))),
        ("started", rows::times(all.iter().map(|run| nanoseconds(run.info.started)))),
        ("seconds", rows::floats(all.iter().map(seconds))),
        ("ranks", rows::integers(all.iter().map(|run| Some(ranks(run))))),
        ("exit_status", rows::integers(all.iter().map(|run| run.info.exit_status.map(i64::from)))),
        ("bytes", rows::integers(all.iter().map(|run| Some(size(&run.directory) as i64)))),
        ("command", rows::text(all.iter().map(|run| Some(&run.info.command)))),
    ];
    rows::show(columns, args.format)?;
    Ok(0)
}

/// Bytes of all files in a directory; what can't be read counts nothing.
fn size(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let of_entry = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.filter_map(std::result::Result::ok).map(of_entry).sum()
}
