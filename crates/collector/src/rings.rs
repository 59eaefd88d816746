//! What a process of this node leaves in memory that it shares with the collector: what it had recorded and not sent.
//!
//! The file is opened while the process lives, and read when it is gone. It has no name, so it disappears when the collector
//! ends too. What is in it is checked like everything that comes from agents.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use probe_trace::open::OpenFrame;
use probe_trace::recover;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::agent::Agent;
use super::dead_process;
use super::shared::CollectorState;
use probe_proto::agent_connection::AgentConnection;

/// The file's name, as the kernel shows it.
const NAME: &str = "/memfd:probe-rings";
/// How long the rows that a process had sent may take to be read; after that, the rings are read anyway.
const REST_TIMEOUT: Duration = Duration::from_secs(10);

/// Processes that end together are read one after the other: each may take some memory.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

/// The rings of a process that lives.
#[derive(Debug)]
pub(super) struct LiveRings(File);

/// What a process left in its rings.
#[derive(Debug, Default)]
pub(super) struct RingContents {
    /// What each thread of the process was in when it ended; what was entered last comes first.
    pub(super) open: Vec<OpenFrame>,
    /// Rows that the process had not sent, or that were not acknowledged.
    pub(super) rows: u64,
    /// Records that can't be read.
    pub(super) unread: u64,
    /// Why not all of the rings, or nothing, could be taken.
    pub(super) problem: Option<String>,
}

impl LiveRings {
    /// Opens the file of a process's `descriptor`. The error says why that can't be.
    pub(super) fn open(pid: i32, descriptor: u32) -> Result<Self, String> {
        let path = format!("/proc/{pid}/fd/{descriptor}");
        let is_theirs = |path: &str| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with(NAME));
        if !is_theirs(&path) {
            return Err("there is no such file".to_owned());
        }
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(|error| error.to_string())?;
        // The number may have come to mean another file meanwhile.
        if !is_theirs(&format!("/proc/self/fd/{}", file.as_raw_fd())) {
            return Err("it is another file".to_owned());
        }
        Ok(Self(file))
    }

    /// Takes what the process left, which has just ended.
    pub(super) async fn inherit(self, shared: &Arc<CollectorState>, agent: &Arc<Agent>) -> RingContents {
        let quiet = shared.until(|_| agent.state().presence != AgentConnection::Live);
        let _ = timeout(REST_TIMEOUT, quiet).await;
        if agent.state().presence == AgentConnection::Ended {
            // The agent said Bye when everything was stored.
            return RingContents::default();
        }
        let Ok(_turn) = ONE_AT_A_TIME.acquire().await else { return RingContents::default() };
        let read = tokio::task::spawn_blocking(move || recover::recover(&self.0)).await;
        let recovered = match read {
            Ok(Ok(recovered)) => recovered,
            Ok(Err(problem)) => return RingContents { problem: Some(problem), ..RingContents::default() },
            Err(error) => return RingContents { problem: Some(error.to_string()), ..RingContents::default() },
        };
        let contents =
            RingContents { open: recovered.open.clone(), unread: recovered.unread, ..RingContents::default() };
        match dead_process::inherit(shared, agent, recovered).await {
            Ok(rows) => RingContents { rows, ..contents },
            Err(problem) => RingContents { problem: Some(problem), ..contents },
        }
    }
}

impl RingContents {
    /// A remark on what could not be taken; None where all of it was.
    pub(super) fn problem(&self) -> Option<String> {
        match (&self.problem, self.unread) {
            (Some(problem), _) => Some(format!("its rings were not read to the end: {problem}")),
            (None, 1..) => Some(format!("{} records of its rings could not be read", self.unread)),
            (None, 0) => None,
        }
    }
}
