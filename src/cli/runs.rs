//! `probe runs`: recorded runs. Removing them is in `remove`.

use std::collections::BTreeSet;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::StreamExt;
use jiff::Timestamp;
use probe_client::endpoint::{FoundEndpoint, RunLocation};
use probe_client::{Client, collect};
use probe_common::error::Result;
use probe_common::paths::ProbeDirectories;
use probe_store::runs::{self, ReachedSteps, RecordedRun, RunState};

use super::status::CommandStatus;
use super::{connect, remove, report};
use crate::output::{OutputFormat, rows};

/// How long the answer of a live run is waited for, which is newer than its file.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Live runs that are asked at a time.
const MAX_ASKED: usize = 4;

/// List recorded runs, newest last, or remove them
///
/// A run is lost if its collector stopped without ending it. You can still query its rows.
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
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(subcommand)]
    action: Option<RunsAction>,
}

#[derive(Debug, clap::Subcommand)]
enum RunsAction {
    Rm(remove::Args),
}

pub(super) fn run(args: Args) -> Result<CommandStatus> {
    match args.action {
        Some(RunsAction::Rm(args)) => remove::run(&args),
        None => list(args.format),
    }
}

fn list(format: OutputFormat) -> Result<CommandStatus> {
    format.check_stdout()?;
    let all = runs::list_runs()?;
    if all.is_empty() && format == OutputFormat::Table {
        report::note("no run has been recorded yet");
        report::hint("probe run -- python train.py records one");
        return Ok(0);
    }
    // Live runs are asked first: nothing that takes long is done while they may answer.
    let is_live = |run: &&RecordedRun| run.info.state == RunState::Live;
    let asking = futures::stream::iter(all.iter().filter(is_live).map(live)).buffered(MAX_ASKED).collect();
    let live: Vec<Option<RunProgress>> = connect::one_thread()?.block_on(asking);
    let mut live = live.into_iter();
    let known: Vec<RunProgress> =
        all.iter().map(|run| is_live(&run).then(|| live.next()?).flatten().unwrap_or_else(|| recorded(run))).collect();
    let nanoseconds = |time: Timestamp| i64::try_from(time.as_nanosecond()).ok();
    let started = || all.iter().map(|run| run.info.started);
    // People get short times; programs get exact ones.
    let people = format == OutputFormat::Table;
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
        ("bytes", rows::integers(all.iter().map(|run| i64::try_from(bytes(run)).ok()))),
        ("command", rows::text(all.iter().map(|run| Some(&run.info.command)))),
    ];
    report::left_out(&rows::show_what_fits(columns, &["ranks", "seconds", "bytes", "exit_status"], format)?);
    Ok(0)
}

/// How long a run took (s), so far if it is live; None where its end is not known.
fn seconds(run: &RecordedRun) -> Option<f64> {
    let ended = match run.info.state {
        RunState::Live => Timestamp::now(),
        // A lost run whose disk was full at its end has its end all the same.
        RunState::Ended | RunState::Lost => run.info.ended?,
    };
    Some(ended.duration_since(run.info.started).as_secs_f64())
}

/// Columns of a run that its file has only once the run has ended.
struct RunProgress {
    last_step: Option<i64>,
    ranks: Option<i64>,
}

/// The columns of a run that no collector answered for, by its directory: of a live one as far as they are on disk. Not in
/// parallel, since the journal is read of all that have not ended.
fn recorded(run: &RecordedRun) -> RunProgress {
    match run.info.state {
        RunState::Ended => RunProgress {
            last_step: run.info.last_step.or_else(|| runs::last_step(&run.directory)),
            ranks: Some(ranks(run.info.ranks.len(), run.info.agents)),
        },
        RunState::Live | RunState::Lost => {
            let ReachedSteps { last_step, ranks: numbered } = runs::reached(&run.directory);
            RunProgress { last_step, ranks: Some(ranks(numbered.len(), usize::from(last_step.is_some()))) }
        }
    }
}

/// The columns of a live run, by its collector; None if it does not answer in time, or has another runtime directory.
async fn live(run: &RecordedRun) -> Option<RunProgress> {
    tokio::time::timeout(TIMEOUT, ask_live(run)).await.ok().and_then(Result::ok)
}

/// Bytes of a run on disk. An ended run does not change: its file has the sum over all its files.
fn bytes(run: &RecordedRun) -> u64 {
    run.info.bytes.unwrap_or_else(|| runs::directory_bytes(&run.directory))
}

/// The number of ranks. Without a process group there is one rank, which has no number.
fn ranks(numbered: usize, agents: usize) -> i64 {
    numbered.max(usize::from(agents > 0)) as i64
}

async fn ask_live(run: &RecordedRun) -> Result<RunProgress> {
    let socket = ProbeDirectories::from_environment()?.socket_for(&run.name.to_string());
    let mut client = Client::open(&FoundEndpoint { location: RunLocation::Socket(socket), pid: None }, None).await?;
    let agents = client.describe().await?.agents;
    let numbered: BTreeSet<i32> = agents.iter().filter_map(|agent| agent.rank).collect();
    let (_, batches) = collect(client.query("SELECT MAX(step) AS last_step FROM python.steps").await?).await?;
    let last_step = batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().iter()).next();
    Ok(RunProgress { ranks: Some(ranks(numbered.len(), agents.len())), last_step: last_step.flatten() })
}
