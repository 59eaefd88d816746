//! Watches the processes of agents until they end, and writes down how.
//!
//! A process is watched from its agent's Hello on, by the descriptor that the kernel has for it, so that another process that
//! gets its number later is never taken for it. That works for processes of this node; of others nothing is known.

use std::sync::Arc;
use std::time::Duration;

use probe_common::clock;
use probe_common::paths::host_name;
use probe_inspect::process_exit::{ProcessEnd, WatchedProcess};
use probe_proto::agent_connection::AgentConnection;
use probe_proto::v1::{self, record};
use probe_store::ProcessIdentity;
use tokio::time::timeout;
use tonic::Extensions;
use tonic::transport::server::UdsConnectInfo;

use super::agent::{Agent, ProcessLife};
use super::events::{RunEvent, Severity};
use super::rings::{LiveRings, RingContents};
use super::shared::CollectorState;
use crate::truncate::{MAX_TEXT, truncate};

/// How long a collector that ends waits for processes that are known to end.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long reading what processes left may take at the end of a collector.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);
/// Most threads whose location an event has.
const MAX_OPEN: usize = 8;

/// The origin of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerProcess {
    /// The process at the other end of the socket, as the kernel says; None over TCP.
    pid: Option<i32>,
}

impl PeerProcess {
    pub(super) fn of(extensions: &Extensions) -> Self {
        let socket = extensions.get::<UdsConnectInfo>();
        Self { pid: socket.and_then(|socket| socket.peer_cred.as_ref()?.pid()).filter(|pid| *pid > 0) }
    }
}

/// Watches the process of an agent that has just said Hello, unless it is watched already.
pub(super) fn watch(shared: &Arc<CollectorState>, agent: &Arc<Agent>, peer: &PeerProcess) {
    let (process, rings) = {
        let mut state = agent.state();
        state.kernel_pid = peer.pid;
        if state.life != ProcessLife::Unknown {
            return;
        }
        let Some(process) = find(&state.identity, &state.about.command, peer) else { return };
        state.life = ProcessLife::Watched;
        // The descriptor belongs to the watched process: it lives, and the kernel says that it is the one that speaks.
        let rings = peer.pid.zip(state.hello.rings).map(|(pid, descriptor)| LiveRings::open(pid, descriptor));
        if let Some(Err(problem)) = &rings {
            state.note_problem(format!(
                "its rings can't be read from here ({problem}): if it is killed, its last tenth of a second is lost"
            ));
        }
        (process, rings.and_then(Result::ok))
    };
    let (shared, agent) = (Arc::downgrade(shared), Arc::clone(agent));
    tokio::spawn(async move {
        let end = process.ended().await;
        // Before what it left is read, which takes time: a process that ends meanwhile has ended later.
        let ended_ns = clock::unix_ns();
        let Some(shared) = shared.upgrade() else { return };
        // The stream ends once all that the process had sent is read.
        agent.over.cancel();
        let contents = match rings {
            Some(rings) => {
                agent.state().life = ProcessLife::Recovering;
                rings.inherit(&shared, &agent).await
            }
            None => RingContents::default(),
        };
        note(&shared, &agent, (end, ended_ns), &contents);
    });
}

/// The process that an agent says it is, if it is on this node. Over TCP a client can say any number, so the command line has to
/// be the process's own, too.
fn find(identity: &ProcessIdentity, command: &str, peer: &PeerProcess) -> Option<WatchedProcess> {
    if let Some(pid) = peer.pid {
        return WatchedProcess::watch(pid, identity.pid).ok();
    }
    if *identity.host != *host_name() {
        return None;
    }
    let process = WatchedProcess::watch(identity.pid, identity.pid).ok()?;
    let words = std::fs::read(format!("/proc/{}/cmdline", identity.pid)).ok()?;
    let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let found = words.join(" ");
    (!command.is_empty() && found.trim_end().starts_with(command)).then_some(process)
}

/// Writes down how a process ended, and when (ns since 1970). Its connection may be open for a moment still.
fn note(shared: &CollectorState, agent: &Agent, (end, ended_ns): (ProcessEnd, i64), contents: &RingContents) {
    let end = match agent.state().wait_status {
        Some(status) if end == ProcessEnd::default() => ProcessEnd::of_wait_status(status),
        _ => end,
    };
    let ended = v1::Ended {
        instance: agent.instance.to_string(),
        unix_ns: ended_ns,
        exit_status: end.exit_status,
        signal: end.signal.clone(),
        cause: end.cause.clone().map(|cause| truncate(cause, MAX_TEXT)),
    };
    let event = {
        let mut state = agent.state();
        if matches!(state.life, ProcessLife::Ended(_)) {
            return;
        }
        state.life = ProcessLife::Ended(ended.clone());
        // With the lock, so that a row that was read is there after a restart.
        shared.journal.record(record::Record::Ended(ended));
        let said_goodbye = state.presence == AgentConnection::Ended;
        state.note_problem(contents.problem().unwrap_or_default());
        is_bad(&end, said_goodbye).then(|| event_of(&end, &state.identity, state.step, said_goodbye, contents))
    };
    if let Some(event) = event {
        shared.events.record(event);
    }
    shared.registry.notify();
}

/// Whether the end of a process deserves a warning. A process that ended with status 0 in another way than the interpreter does
/// (`os._exit(0)`) wanted that.
fn is_bad(end: &ProcessEnd, said_goodbye: bool) -> bool {
    match *end == ProcessEnd::default() {
        true => !said_goodbye,
        false => !end.is_good(),
    }
}

fn event_of(
    end: &ProcessEnd,
    process: &ProcessIdentity,
    step: i64,
    said_goodbye: bool,
    contents: &RingContents,
) -> RunEvent {
    let who = match process.rank {
        Some(rank) => format!("rank {rank} (process {})", process.pid),
        None => format!("process {}", process.pid),
    };
    let how = end.in_words();
    let cause = end.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
    let inside: Vec<_> = contents
        .open
        .iter()
        .take(MAX_OPEN)
        .map(|open| {
            serde_json::json!({
                "module": open.module, "stage": open.stage, "step": open.step, "since": open.since_ns,
                "main": open.thread == i64::from(process.pid),
            })
        })
        .collect();
    let details = serde_json::json!({
        "exit_status": end.exit_status, "signal": end.signal, "cause": end.cause, "said_goodbye": said_goodbye,
        "inside": inside, "recovered_rows": contents.rows, "unread_records": contents.unread,
    });
    let message = format!("{who} {how}; its last report said {step} steps{cause}");
    // A person asked for these, or a launcher did because of another rank.
    let asked_for = matches!(end.signal.as_deref(), Some("SIGTERM" | "SIGINT" | "SIGHUP"));
    let severity = if asked_for { Severity::Warning } else { Severity::Error };
    RunEvent::new("process end", severity, message).of_process(process).at_step(step).with_details(&details)
}

/// Takes the wait status of a process from its parent. The watch may not know it: before Linux 6.15 the kernel tells only the
/// parent.
pub(super) fn take_wait_status(shared: &CollectorState, pid: u32, wait_status: i32) {
    for agent in shared.registry.all() {
        let mut state = agent.state();
        if matches!(state.life, ProcessLife::Watched | ProcessLife::Recovering)
            && u32::try_from(state.identity.pid) == Ok(pid)
        {
            state.wait_status = Some(wait_status);
        }
    }
}

/// Waits, for a limited time, for the exit status of processes that are gone or said Bye.
pub(super) async fn wait_for_exits(shared: &CollectorState) {
    let settled = |shared: &CollectorState| {
        let going = |agent: &Arc<Agent>| {
            let state = agent.state();
            state.presence != AgentConnection::Live && state.life == ProcessLife::Watched
        };
        !shared.registry.all().iter().any(going)
    };
    // An end that is not known by then is NULL.
    let _ = timeout(SETTLE_TIMEOUT, shared.until(settled)).await;
    let recovered = |shared: &CollectorState| {
        !shared.registry.all().iter().any(|agent| agent.state().life == ProcessLife::Recovering)
    };
    let _ = timeout(RECOVERY_TIMEOUT, shared.until(recovered)).await;
}
