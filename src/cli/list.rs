//! `probe list`: live training processes.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use probe_client::Client;
use probe_client::endpoint::{FoundEndpoint, RunLocation};
use probe_common::error::{Error, Result};
use probe_common::paths;
use probe_inspect::gpu;
use probe_inspect::stacks::without_agent;
use probe_proto::agent_connection::AgentConnection;
use probe_proto::v1;
use probe_store::runs;

use super::status::CommandStatus;
use super::{connect, report};
use crate::output::{OutputFormat, rows};

/// How long a collector may take to list its processes.
const TIMEOUT: Duration = Duration::from_secs(2);

/// List live runs and their processes
///
/// Processes of this user that have loaded torch but have no agent, or an agent elsewhere, are listed too, without a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  probe list
  probe list --format json")]
pub(super) struct Args {
    /// Also show processes that have ended
    #[arg(short, long)]
    all: bool,
    /// Leave out training processes that have no agent
    #[arg(long)]
    with_agent: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
}

/// A process, or a collector that has none.
struct ListedProcess {
    /// None for a process that no collector knows.
    run: Option<String>,
    pid: Option<u32>,
    agent: Option<v1::AgentInfo>,
    command: String,
    /// Whether the process has an agent of which no collector here knows.
    is_elsewhere: bool,
    /// GPUs that the process computes on; None where the driver names none.
    gpu: Option<String>,
}

pub(super) fn run(args: Args) -> Result<CommandStatus> {
    let sockets = paths::list_sockets()?;
    let descriptions = connect::one_thread()?.block_on(join_all(sockets.iter().map(|(_, socket)| async move {
        let target = FoundEndpoint { location: RunLocation::Socket(socket.clone()), pid: None };
        let asked = async { Client::open(&target, None).await?.describe().await };
        let late = |_| Err(Error::limit(format!("no answer within {} s", TIMEOUT.as_secs())));
        tokio::time::timeout(TIMEOUT, asked).await.unwrap_or_else(late)
    })));
    let mut found = Vec::new();
    for ((run, socket), description) in sockets.iter().zip(descriptions) {
        match description {
            Ok(description) => found.extend(rows_of(description, args.all)),
            Err(error) => report::note(format_args!("{run} at {} does not answer: {error}", socket.display())),
        }
    }
    let known: BTreeSet<u32> = found.iter().filter_map(|row| row.pid).collect();
    let others = if args.with_agent { Vec::new() } else { without_agent::find(&known) };
    let example = others.iter().find(|other| !other.has_agent).map(|other| other.pid);
    found.extend(others.into_iter().map(|other| ListedProcess {
        run: None,
        pid: Some(other.pid),
        agent: None,
        command: other.command,
        is_elsewhere: other.has_agent,
        gpu: None,
    }));
    if found.is_empty() && args.format == OutputFormat::Table {
        report::note("nothing is live");
        let recorded = runs::list_runs().unwrap_or_default();
        report::hint(match recorded.last() {
            Some(run) => format!("probe {} query … asks the newest recorded run; probe runs lists them", run.name),
            None => "probe run -- python train.py starts a training run that can be asked".to_owned(),
        });
        return Ok(0);
    }
    let gpus = gpu::by_process();
    for row in &mut found {
        let on = row.pid.and_then(|pid| gpus.get(&pid));
        row.gpu = on.map(|on| on.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
    }
    show(&found, args.format)?;
    if args.format == OutputFormat::Table && found.iter().any(|row| row.is_elsewhere) {
        report::hint(format_args!(
            "the agent of a process that is elsewhere has its collector's socket in another directory than {}, or has no \
             collector: XDG_RUNTIME_DIR or PROBE_RUNTIME_DIR names it",
            paths::runtime_dir()?.display()
        ));
    }
    if let Some(pid) = example
        && args.format == OutputFormat::Table
    {
        report::hint(format_args!(
            "probe attach {pid} records a process without an agent, and probe {pid} stack shows where it is"
        ));
    }
    Ok(0)
}

fn rows_of(description: v1::Description, all: bool) -> Vec<ListedProcess> {
    let v1::Description { run, command, agents, .. } = description;
    let mut agents: Vec<_> =
        agents.into_iter().filter(|agent| all || agent.state != AgentConnection::Ended.as_str()).collect();
    agents.sort_by_key(|agent| (agent.rank, agent.pid));
    if agents.is_empty() {
        return vec![ListedProcess { run: Some(run), pid: None, agent: None, command, is_elsewhere: false, gpu: None }];
    }
    let row = |agent: v1::AgentInfo| ListedProcess {
        run: Some(run.clone()),
        pid: Some(agent.pid),
        command: agent.command.clone(),
        agent: Some(agent),
        is_elsewhere: false,
        gpu: None,
    };
    agents.into_iter().map(row).collect()
}

fn state(row: &ListedProcess) -> &str {
    match (&row.agent, &row.run) {
        (Some(agent), _) => &agent.state,
        (None, Some(_)) => "no process",
        (None, None) if row.is_elsewhere => "elsewhere",
        (None, None) => "no agent",
    }
}

fn show(found: &[ListedProcess], format: OutputFormat) -> Result<()> {
    let agents = || found.iter().map(|row| row.agent.as_ref());
    let speed = |agent: &v1::AgentInfo| (agent.steps_per_second > 0.0).then_some(agent.steps_per_second);
    let mut columns = vec![
        ("run", rows::text(found.iter().map(|row| row.run.as_ref()))),
        ("pid", rows::integers(found.iter().map(|row| row.pid.map(i64::from)))),
        ("rank", rows::integers(agents().map(|agent| agent?.rank.map(i64::from)))),
        ("state", rows::text(found.iter().map(|row| Some(state(row))))),
        ("step", rows::integers(agents().map(|agent| agent.map(|agent| agent.step)))),
        ("steps_per_second", rows::floats(agents().map(|agent| agent.and_then(speed)))),
        ("gpu", rows::text(found.iter().map(|row| row.gpu.as_ref()))),
        ("command", rows::text(found.iter().map(|row| Some(&row.command)))),
    ];
    // People without GPUs need no empty column; programs get the same ones everywhere.
    if format == OutputFormat::Table && found.iter().all(|row| row.gpu.is_none()) {
        columns.retain(|(name, _)| *name != "gpu");
    }
    rows::show(columns, format)
}
