//! Finds what an ENDPOINT means: a live collector, or the directory of a recorded run.

use std::path::Path;

use probe_common::error::{Error, ErrorKind, Result};
use probe_common::paths;
use probe_common::run_name::RunName;
use probe_proto::agent_connection::AgentConnection;
use probe_proto::env;
use probe_store::runs;

use crate::client::Client;
use crate::endpoint::{Endpoint, FoundEndpoint, RunLocation, live_hint};

/// Finds the target of `written`, else of `PROBE_ENDPOINT`, else the only live run.
pub async fn find(written: Option<&str>) -> Result<FoundEndpoint> {
    let variable = std::env::var(env::PROBE_ENDPOINT).ok().filter(|value| !value.is_empty());
    match written.map(str::to_owned).or(variable) {
        Some(text) => find_written(&text).await,
        None => only_live(),
    }
}

async fn find_written(text: &str) -> Result<FoundEndpoint> {
    let at = |location| Ok(FoundEndpoint { location, pid: None });
    let endpoint = Endpoint::parse(text).map_err(|error| match error.kind() {
        // A name that is not valid is reported as an endpoint that does not exist.
        ErrorKind::Usage => Error::unreachable(format!("there is no run '{text}'")).because(error).hint(live_hint()),
        _ => error,
    })?;
    match endpoint {
        Endpoint::Socket(path) => match paths::socket_state(&path) {
            paths::SocketState::Live => at(RunLocation::Socket(path)),
            state => Err(Error::unreachable(format!("{text}: {}", socket_words(state))).hint(live_hint())),
        },
        Endpoint::Tcp(address) => at(RunLocation::Tcp(address)),
        Endpoint::Directory(path) if path.join("run.json").is_file() => at(RunLocation::Directory(path)),
        Endpoint::Directory(path) if path.exists() => {
            Err(Error::unreachable(format!("{text} is not a run directory: it has no run.json")).hint(live_hint()))
        }
        Endpoint::Directory(_) => Err(Error::unreachable(format!("there is no {text}")).hint(live_hint())),
        Endpoint::Pid(pid) => find_pid(pid).await,
        Endpoint::Run(name) => find_run(&name),
    }
}

fn socket_words(state: paths::SocketState) -> &'static str {
    match state {
        paths::SocketState::Live => "a collector listens there",
        paths::SocketState::Stale => "no collector listens on it any more",
        paths::SocketState::Absent => "there is no such socket",
        paths::SocketState::Other => "that is not a socket, or you have no permission to open it",
    }
}

fn find_run(name: &RunName) -> Result<FoundEndpoint> {
    let live = paths::list_sockets()?;
    let matches = |run: &str| match name.number {
        Some(_) => run == name.to_string(),
        None => run == name.base || run.rsplit_once('@').is_some_and(|(base, _)| base == name.base),
    };
    if let Some((_, socket)) = live.iter().rev().find(|(run, _)| matches(run)) {
        return Ok(FoundEndpoint { location: RunLocation::Socket(socket.clone()), pid: None });
    }
    match runs::resolve(&name.to_string()) {
        Ok(directory) => Ok(FoundEndpoint { location: RunLocation::Directory(directory), pid: None }),
        Err(error) => Err(Error::unreachable(format!("no run '{name}' is live, and {error}")).hint(live_hint())),
    }
}

async fn find_pid(pid: u32) -> Result<FoundEndpoint> {
    // A process that was detached from one run and attached to another is in the latter.
    let mut former = None;
    for (_, socket) in paths::list_sockets()? {
        let location = RunLocation::Socket(socket);
        let Ok(mut client) = Client::open(&FoundEndpoint { location: location.clone(), pid: None }, None).await else {
            continue;
        };
        let Ok(description) = client.describe().await else { continue };
        let mut here = description.agents.iter().filter(|agent| agent.pid == pid).peekable();
        if here.peek().is_some() {
            let is_live = here.any(|agent| agent.state == AgentConnection::Live.as_str());
            let target = FoundEndpoint { location, pid: Some(pid) };
            if is_live {
                return Ok(target);
            }
            former = Some(target);
        }
    }
    if let Some(target) = former {
        return Ok(target);
    }
    let what = if Path::new(&format!("/proc/{pid}")).exists() {
        format!("process {pid} is not a training process of a live collector")
    } else {
        format!("there is no process {pid}, and no live collector has recorded one")
    };
    Err(Error::unreachable(what).hint(live_hint()))
}

fn only_live() -> Result<FoundEndpoint> {
    let mut live = paths::list_sockets()?;
    match (live.pop(), live.is_empty()) {
        (Some((_, socket)), true) => Ok(FoundEndpoint { location: RunLocation::Socket(socket), pid: None }),
        (Some(_), false) => Err(Error::usage("several runs are live, and no ENDPOINT was given").hint(live_hint())),
        (None, _) => Err(Error::unreachable("no run is live, and no ENDPOINT was given").hint(live_hint())),
    }
}
