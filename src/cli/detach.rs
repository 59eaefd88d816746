//! `probe detach PID|RUN`: the agent out of a process again.

use std::time::Duration;

use probe_client::Client;
use probe_client::discover;
use probe_collector::eval::printed;
use probe_common::error::{Error, Result};
use probe_inspect::attach::BootstrapReport;
use probe_proto::agent_connection::AgentConnection;
use probe_proto::v1::{self, At};

use super::connect::ConnectOptions;
use super::eval;
use super::status::CommandStatus;
use super::{connect, report};

/// Take the agent out of a process, or out of all processes of a run
///
/// Hooks and slots are restored, the agent's threads end, and training continues. The recorded rows stay. This works
/// however the agent was started, and probe attach starts it again.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe detach [OPTIONS] <PID|RUN>",
    after_help = "Examples:
  probe detach 4711
  probe detach gpt"
)]
pub(super) struct Args {
    /// The process, or the run
    #[arg(value_name = "PID|RUN")]
    whom: Option<String>,
    /// How long to wait for the process's main thread to reach a place where hooks can be removed
    #[arg(long, value_name = "DURATION", value_parser = super::amounts::duration, default_value = "30s")]
    timeout: Duration,
    #[command(flatten)]
    connection: ConnectOptions,
}

/// Bytes that the snippet may print.
const MAX_OUTPUT: u64 = 1 << 16;
/// The interval of checks whether an agent has gone, and how long it may take: it sends its rows first.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const TO_GO: Duration = Duration::from_secs(15);

/// Takes PID|RUN after the command, or before it as other commands have it.
pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    let whom = match (args.whom.as_deref(), endpoint) {
        (Some(one), Some(other)) => {
            return Err(Error::usage(format!(
                "probe detach takes one process or run, and '{other}' and '{one}' are named"
            ))
            .hint(format!("probe detach {one}")));
        }
        (None, None) => {
            return Err(Error::usage("probe detach needs a process or a run")
                .hint("probe detach PID, or probe detach RUN; probe list shows those that have an agent"));
        }
        (Some(whom), None) | (None, Some(whom)) => whom,
    };
    let runtime = connect::one_thread()?;
    runtime.block_on(async {
        let target = discover::find(Some(whom)).await?;
        let mut client = Client::open(&target, args.connection.token_file()).await?;
        if !client.is_live() {
            return Err(Error::unreachable(format!("{whom} has ended: no process of it has an agent"))
                .hint("probe list shows those that have one"));
        }
        let run = target.location.name();
        let live = live(&mut client, target.pid).await?;
        if live.is_empty() {
            return Err(Error::unreachable(format!("no process of {whom} has an agent")).hint("probe list shows those that have one"));
        }
        let mut failed = None;
        for agent in live {
            match detach(&mut client, &agent, args).await {
                Ok(waited) => report::note(format_args!(
                    "process {} goes on without an agent (its main thread stood still for {waited:.1} ms); probe {run} query … asks what was recorded",
                    agent.pid
                )),
                Err(error) => {
                    report::error(&error);
                    failed = Some(error);
                }
            }
        }
        Ok(failed.map_or(0, |error| error.kind() as CommandStatus))
    })
}

/// Live agents: that of the process `only`, or all.
async fn live(client: &mut Client, only: Option<u32>) -> Result<Vec<v1::AgentInfo>> {
    let agents = client.describe().await?.agents.into_iter();
    Ok(agents
        .filter(|agent| agent.state == AgentConnection::Live.as_str() && only.is_none_or(|pid| pid == agent.pid))
        .collect())
}

/// Detaches one agent. Returns for how many milliseconds its main thread stood still.
async fn detach(client: &mut Client, agent: &v1::AgentInfo, args: &Args) -> Result<f64> {
    let pid = agent.pid;
    let patience = args.timeout.as_secs_f64();
    let code = format!("__import__('probe_agent.attaching', fromlist=['detach']).detach({patience})");
    let mut call = eval::call(code, At::Now, None, args.timeout + Duration::from_secs(30), MAX_OUTPUT);
    call.pid = Some(pid);
    let (printed, finished) = printed(client.eval(call).await?).await?;
    let finished = finished.unwrap_or_default();
    let wrong = |why: &str| Error::failed(format!("cannot detach from process {pid}: {why}"));
    match finished.outcome() {
        v1::Outcome::Ok => {}
        v1::Outcome::Refused => {
            return Err(
                Error::denied(format!("cannot detach from process {pid}: {}", finished.error)).hint(finished.hint)
            );
        }
        _ => return Err(wrong(finished.error.trim())),
    }
    let report: BootstrapReport = serde_json::from_slice(&printed).map_err(|error| wrong(&error.to_string()))?;
    if let Some(why) = report.refused {
        return Err(wrong(&why));
    }
    let gone = async {
        while !live(client, Some(pid)).await?.is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    };
    match tokio::time::timeout(TO_GO, gone).await {
        Ok(gone) => gone.map(|()| report.waited_s.unwrap_or_default() * 1e3),
        Err(_) => Err(Error::limit(format!("process {pid} has restored torch, but its agent is still connected"))),
    }
}
