//! `probe runs rm`: removes recorded runs, by name or by age.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use probe_common::error::{Error, ErrorKind, Result};
use probe_common::paths::ProbeDirectories;
use probe_store::runs::{self, RecordedRun, RunState};

use super::report;
use super::status::CommandStatus;

/// Remove recorded runs
///
/// A live run is never removed. A name without a number is enough if only one run has that name. If one of the names
/// is wrong, nothing is removed.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe runs rm [OPTIONS] <NAME>...\n       probe runs rm [OPTIONS] --older-than <AGE>",
    after_help = "Examples:
  probe runs rm gpt@1 gpt@2
  probe runs rm --older-than 7d --dry-run"
)]
pub(super) struct Args {
    /// Runs to remove, by their names in probe runs
    #[arg(value_name = "NAME", required_unless_present = "older_than", conflicts_with = "older_than")]
    names: Vec<String>,
    /// Remove every run that ended longer ago than this (12h, 7d, 2weeks)
    #[arg(long, value_name = "AGE", value_parser = super::amounts::duration)]
    older_than: Option<Duration>,
    /// Only print what would be removed
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &Args) -> Result<CommandStatus> {
    let directories = ProbeDirectories::from_environment()?;
    let chosen = match args.older_than {
        Some(age) => older_than(&directories, age)?,
        None => by_name(&directories, &args.names)?,
    };
    if chosen.is_empty() {
        report::note("no recorded run ended that long ago");
    }
    let mut done = RemovedRuns::default();
    if !args.dry_run {
        done.bytes += runs::sweep(&directories);
    }
    for run in &chosen {
        done.one(run, args.dry_run);
    }
    done.say(args.dry_run)
}

/// The named runs. One wrong name is an error, and nothing is removed: the list was not meant so.
fn by_name(directories: &ProbeDirectories, names: &[String]) -> Result<Vec<RecordedRun>> {
    let chosen = runs::named_runs(directories, names).map_err(|error| {
        let kind = if error.kind() == ErrorKind::Unreachable { ErrorKind::Failed } else { error.kind() };
        let hint = error.hint_text().map(str::to_owned);
        let error = Error::new(kind, format!("{error}; nothing was removed"));
        hint.map_or(error.clone(), |hint| error.hint(hint))
    })?;
    for run in &chosen {
        if let Some(why) = runs::why_it_stays(directories, run) {
            let hint = match run.info.state {
                RunState::Live => "it can be removed when it has ended".to_owned(),
                _ => format!("if you are certain that no process writes to it: rm -r {}", run.directory.display()),
            };
            return Err(Error::failed(format!("{why}; nothing was removed")).hint(hint));
        }
    }
    Ok(chosen)
}

fn older_than(directories: &ProbeDirectories, age: Duration) -> Result<Vec<RecordedRun>> {
    let too_long = || Error::usage("--older-than is too large");
    let age = SignedDuration::try_from(age).map_err(|_| too_long())?;
    let before = Timestamp::now().checked_sub(age).map_err(|_| too_long())?;
    let mut all = runs::list_runs_in(directories)?;
    all.retain(|run| runs::ended(run).is_some_and(|ended| ended < before));
    all.retain(|run| match runs::why_it_stays(directories, run) {
        Some(why) => {
            report::note(format_args!("{why}: not removed"));
            false
        }
        None => true,
    });
    Ok(all)
}

/// Counts of what was removed so far.
#[derive(Default)]
struct RemovedRuns {
    removed: usize,
    failed: usize,
    bytes: u64,
}

impl RemovedRuns {
    fn one(&mut self, run: &RecordedRun, dry_run: bool) {
        let name = &run.name;
        let removed = if dry_run { Ok(runs::directory_bytes(&run.directory)) } else { runs::remove(run) };
        match removed {
            Ok(bytes) => {
                let verb = if dry_run { "would remove" } else { "removed" };
                report::note(format_args!("{verb} {name} ({}), {}", amount(bytes), words(run)));
                self.removed += 1;
                self.bytes += bytes;
            }
            Err(error) => {
                let hint = error.hint_text().map(str::to_owned);
                let error = Error::failed(format!("{name} was not completely removed")).because(error);
                report::error(&hint.map_or(error.clone(), |hint| error.hint(hint)));
                self.failed += 1;
            }
        }
    }

    fn say(&self, dry_run: bool) -> Result<CommandStatus> {
        let runs = |count: usize| if count == 1 { "1 run".to_owned() } else { format!("{count} runs") };
        if self.removed > 1 || self.failed > 0 {
            let (runs, bytes) = (runs(self.removed), amount(self.bytes));
            report::note(match dry_run {
                true => format!("{runs} would be removed, which would free {bytes}"),
                false => format!("{runs} removed, which freed {bytes}"),
            });
        }
        Ok(u8::from(self.failed > 0))
    }
}

fn words(run: &RecordedRun) -> String {
    let day = |time: Timestamp| time.strftime("%Y-%m-%d").to_string();
    match (run.info.state, runs::ended(run)) {
        (RunState::Ended, Some(ended)) => format!("which ended {}", day(ended)),
        _ => format!("which was begun {} and lost", day(run.info.started)),
    }
}

/// Bytes as people read them.
fn amount(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 999.95 && unit + 1 < units.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        for (bytes, text) in [(0, "0.0 KiB"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (5 << 40, "5.0 TiB")] {
            assert_eq!(amount(bytes), text);
        }
    }
}
