//! The collector of a process that is attached to: that of a live run, or one that is started for the process and ends
//! when no process needs it any more.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use probe_client::Client;
use probe_client::discover;
use probe_client::endpoint::{FoundEndpoint, RunLocation};
use probe_common::error::{Error, ErrorKind, Result};
use probe_common::paths::{self, io_error_at};
use probe_proto::agent_connection::AgentConnection;
use probe_proto::env;

use super::targets::AttachTarget;
use crate::cli::launch;

/// How long a collector may take to listen.
const TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The started collector ends when no process has been connected for this long.
const IDLE: &str = "30s";
/// Characters that are shown of the output of a collector that ended.
const LAST_OUTPUT: usize = 500;

/// A collector, and the run that it keeps.
pub(super) struct RunCollector {
    /// Name of the run: `gpt@2`.
    pub(super) run: String,
    /// Address of the collector: `unix:PATH`.
    pub(super) address: String,
    /// The process of the collector, if it was started just now.
    started: Option<Child>,
}

impl RunCollector {
    /// Ends a collector that was started for processes of which none was attached to, before it has been idle long enough.
    pub(super) fn give_up(&mut self) {
        if let Some(mut child) = self.started.take() {
            let pid = i32::try_from(child.id()).unwrap_or_default();
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
            let _ = child.wait();
        }
    }

    /// Waits until the agents of these processes are connected, so that the next query has an answer.
    pub(super) async fn wait_for(&self, pids: &[u32]) -> Result<()> {
        let target = discover::find(Some(&self.run)).await?;
        let mut client = Client::open(&target, None).await?;
        let connected = async {
            loop {
                let agents = client.describe().await?.agents;
                let live = |pid: &u32| {
                    agents.iter().any(|agent| agent.pid == *pid && agent.state == AgentConnection::Live.as_str())
                };
                if pids.iter().all(live) {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::time::timeout(TIMEOUT, connected).await.unwrap_or_else(|_| {
            Err(Error::limit(format!("the agent has not connected to run {} within {} s", self.run, TIMEOUT.as_secs()))
                .hint("the standard error of the training process says why"))
        })
    }
}

/// A process that a live collector knows.
pub(super) struct KnownProcess {
    pub(super) pid: u32,
    /// Whether its agent is connected.
    pub(super) live: bool,
    pub(super) run: String,
}

/// Processes that live collectors know.
pub(super) async fn known_processes() -> Result<Vec<KnownProcess>> {
    let mut found = Vec::new();
    for (run, socket) in paths::list_sockets()? {
        let target = FoundEndpoint { location: RunLocation::Socket(socket), pid: None };
        // A collector that does not answer has no agents.
        let asked = async { Client::open(&target, None).await?.describe().await };
        let Ok(Ok(description)) = tokio::time::timeout(Duration::from_secs(2), asked).await else { continue };
        let agents = description.agents.into_iter();
        found.extend(agents.map(|agent| KnownProcess {
            pid: agent.pid,
            live: agent.state == AgentConnection::Live.as_str(),
            run: run.clone(),
        }));
    }
    Ok(found)
}

/// The collector of the live run called `name` or, without a name, of the run that one of `targets` was in before. Starts
/// a new one if there is none.
pub(super) async fn find_or_start(
    name: Option<&str>,
    targets: &[AttachTarget],
    known: &[KnownProcess],
) -> Result<RunCollector> {
    let previous = known.iter().rfind(|known| targets.iter().any(|one| one.pid == known.pid));
    if let Some(name) = name.or(previous.map(|known| known.run.as_str())) {
        match discover::find(Some(name)).await {
            Ok(FoundEndpoint { location: RunLocation::Socket(socket), .. }) => {
                return Ok(RunCollector {
                    run: RunLocation::Socket(socket.clone()).name(),
                    address: format!("unix:{}", socket.display()),
                    started: None,
                });
            }
            // The run is over, or there is none: the new one has its name, and the next number.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Unreachable => {}
            Err(error) => return Err(error),
        }
    }
    let Some(first) = targets.first() else { return Err(Error::usage("there is no process to attach to")) };
    let name =
        name.map_or_else(|| launch::name_of(&first.command), |name| name.split('@').next().unwrap_or(name).to_owned());
    start(&name, first.pid).await
}

async fn start(name: &str, pid: u32) -> Result<RunCollector> {
    let runtime = paths::runtime_dir()?;
    // No other collector has these names: one of the same process may still run.
    let base = format!("attach-{pid}-{}", std::process::id());
    let (socket, log) = (runtime.join(format!("{base}.sock")), runtime.join(format!("{base}.log")));
    let program =
        std::env::current_exe().map_err(|error| Error::failed("cannot find the probe executable").because(error))?;
    let mut child = Command::new(&program)
        .args(["serve", "--name", name, "--exit-when-idle", IDLE, "--listen"])
        .arg(format!("unix:{}", socket.display()))
        .env_remove(env::PROBE)
        .env_remove(env::PROBE_COLLECTOR)
        .env_remove(env::PROBE_RUN)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).map_err(|error| io_error_at(&log, error))?)
        // Ctrl-C at this terminal does not reach it.
        .process_group(0)
        .spawn()
        .map_err(|error| Error::failed(format!("{} could not be started", program.display())).because(error))?;
    let target = FoundEndpoint { location: RunLocation::Socket(socket.clone()), pid: None };
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if paths::socket_state(&socket) == paths::SocketState::Live
            && let Ok(mut client) = Client::open(&target, None).await
            && let Ok(description) = client.describe().await
        {
            let own = paths::socket_for(&description.run)?;
            let address = format!("unix:{}", own.display());
            return Ok(RunCollector { run: description.run, address, started: Some(child) });
        }
        if let Some(why) = ended(&mut child, &log) {
            return Err(why);
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            return Err(Error::limit(format!("the collector did not answer within {} s", TIMEOUT.as_secs()))
                .hint(format!("its output is in {}", log.display())));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Why the started collector has ended; None while it runs.
fn ended(child: &mut Child, log: &Path) -> Option<Error> {
    let status = child.try_wait().ok().flatten()?;
    let output = fs::read_to_string(log).unwrap_or_default();
    let output: String = output.chars().take(LAST_OUTPUT).collect();
    Some(Error::failed(format!("the collector ended ({status}): {}", output.trim())))
}
