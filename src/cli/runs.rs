//! `probe runs`: recorded runs. Removing them is in `remove`.

use std::collections::BTreeSet;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::future::join_all;
use jiff::Timestamp;

use super::{Status, ask, remove, report};
use crate::client::{Client, collect};
use crate::endpoint::{Place, Target};
use crate::error::Result;
use crate::output::{Format, rows};
use crate::paths::Places;
use crate::runs::{self, Run, State};

/// How long a live run is waited for, which knows better than its file how far it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// List recorded runs, the newest last, or remove some
///
/// A lost run is one whose collector went away without ending it: its rows can be asked for all the same.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe runs [OPTIONS]\n       probe runs rm [OPTIONS] <NAME>...",
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    after_help = "Examples:
  probe runs
  probe runs --format json
  probe runs rm gpt@1 gpt@2
  probe runs rm --older-than 7d
  probe gpt@1 query \"SELECT COUNT(*) FROM python.steps\"    # asks a run that has ended"
)]
pub(super) struct Args {
    /// How the list looks
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Rm(remove::Args),
}

pub(super) fn run(args: Args) -> Result<Status> {
    match args.action {
        Some(Action::Rm(args)) => remove::run(&args),
        None => list(args.format),
    }
}

fn list(format: Format) -> Result<Status> {
    format.check_stdout()?;
    let all = runs::list_runs()?;
    if all.is_empty() && format == Format::Table {
        report::note("no run has been recorded yet");
        report::hint("probe run -- python train.py records one");
        return Ok(0);
    }
    let known: Vec<Known> = ask::one_thread()?.block_on(join_all(all.iter().map(known)));
    let nanoseconds = |time: Timestamp| i64::try_from(time.as_nanosecond()).ok();
    let started = || all.iter().map(|run| run.info.started);
    // People get times that they can take in at a glance; programs get all of them.
    let people = format == Format::Table;
    let started = match people {
        true => rows::coarse_times(started().map(Timestamp::as_second)),
        false => rows::times(started().map(nanoseconds)),
    };
    let seconds = |run| seconds(run).map(|seconds| if people { (seconds * 10.0).round() / 10.0 } else { seconds });
    let columns = vec![
        ("run", rows::text(all.iter().map(|run| Some(run.name.to_string())))),
        ("state", rows::text(all.iter().map(|run| Some(run.info.state.as_str())))),
        ("started", started),
        ("seconds", rows::floats(all.iter().map(seconds))),
        ("last_step", rows::integers(known.iter().map(|known| known.last_step))),
        ("ranks", rows::integers(known.iter().map(|known| known.ranks))),
        ("exit_status", rows::integers(all.iter().map(|run| run.info.exit_status.map(i64::from)))),
        ("bytes", rows::integers(all.iter().map(|run| i64::try_from(runs::size(&run.directory)).ok()))),
        ("command", rows::text(all.iter().map(|run| Some(&run.info.command)))),
    ];
    report::left_out(&rows::show_what_fits(columns, &["ranks", "seconds", "bytes", "exit_status"], format)?);
    Ok(0)
}

/// How long it took; of a live one so far. Nobody knows when a lost one ended.
fn seconds(run: &Run) -> Option<f64> {
    let ended = match run.info.state {
        State::Live => Timestamp::now(),
        State::Ended => run.info.ended?,
        State::Lost => return None,
    };
    Some(ended.duration_since(run.info.started).as_secs_f64())
}

/// What a run's file says only when it has ended.
#[derive(Default)]
struct Known {
    last_step: Option<i64>,
    ranks: Option<i64>,
}

async fn known(run: &Run) -> Known {
    match run.info.state {
        State::Ended => Known {
            last_step: run.info.last_step.or_else(|| runs::last_step(&run.directory)),
            ranks: Some(ranks(run.info.ranks.len(), run.info.agents)),
        },
        // Some of its rows may not be in files yet, so they are asked for.
        State::Lost => {
            let files = Known { last_step: runs::last_step(&run.directory), ranks: None };
            ask_rows(Place::Directory(run.directory.clone())).await.unwrap_or(files)
        }
        // One that does not answer in time is listed with what is known without it.
        State::Live => {
            tokio::time::timeout(PATIENCE, ask_live(run)).await.ok().and_then(Result::ok).unwrap_or_default()
        }
    }
}

/// Without a process group there is one rank, which has no number.
fn ranks(numbered: usize, agents: usize) -> i64 {
    numbered.max(usize::from(agents > 0)) as i64
}

async fn ask_live(run: &Run) -> Result<Known> {
    let socket = Place::Socket(Places::from_environment()?.socket_for(&run.name.to_string()));
    let agents = Client::open(&Target { place: socket.clone(), pid: None }, None).await?.describe().await?.agents;
    let numbered: BTreeSet<i32> = agents.iter().filter_map(|agent| agent.rank).collect();
    Ok(Known { ranks: Some(ranks(numbered.len(), agents.len())), ..ask_rows(socket).await? })
}

/// As its rows say.
async fn ask_rows(place: Place) -> Result<Known> {
    let mut client = Client::open(&Target { place, pid: None }, None).await?;
    let sql = "SELECT MAX(step) AS last_step, COUNT(DISTINCT rank) AS ranks, COUNT(*) AS rows FROM python.steps";
    let (_, batches) = collect(client.query(sql).await?).await?;
    let value = |place: usize| {
        let mut values = batches.iter().flat_map(|batch| batch.column(place).as_primitive::<Int64Type>().iter());
        values.next().flatten()
    };
    let numbered = usize::try_from(value(1).unwrap_or_default()).unwrap_or_default();
    Ok(Known { last_step: value(0), ranks: value(2).map(|rows| ranks(numbered, usize::from(rows > 0))) })
}
