//! What a process of this node leaves in memory that it shares with us: what it had recorded and not sent.
//!
//! The file is opened while the process lives, and read when it is gone. It has no name, so nothing is left of it when we
//! are gone too. What is in it is checked like everything that comes from agents.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use probe_trace::open::Open;
use probe_trace::recover;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::agent::{Agent, Presence};
use super::dead_process;
use super::shared::Shared;

/// The file's name, as the kernel shows it.
const NAME: &str = "/memfd:probe-rings";
/// What had been sent when a process ended is read within this time, or what it left is taken before.
const REST_TIMEOUT: Duration = Duration::from_secs(10);

/// Of several processes that end together one is read after the other: each may take some memory.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

/// The memory of a process that lives.
#[derive(Debug)]
pub(super) struct Rings(File);

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Where it was, on each thread that was in anything; what was entered last first.
    pub(super) open: Vec<Open>,
    /// Rows that it had not sent, or not heard of.
    pub(super) rows: u64,
    /// Records that can't be read.
    pub(super) unread: u64,
    /// Why not all of it, or nothing, could be taken.
    pub(super) problem: Option<String>,
}

impl Rings {
    /// Opens what a process calls `descriptor`. The error says why that can't be.
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

    /// Takes what its process left, which has just ended.
    pub(super) async fn inherit(self, shared: &Arc<Shared>, agent: &Arc<Agent>) -> Left {
        let quiet = shared.until(|_| agent.state().presence != Presence::Live);
        let _ = timeout(REST_TIMEOUT, quiet).await;
        if agent.state().presence == Presence::Ended {
            // It said goodbye when everything was stored.
            return Left::default();
        }
        let Ok(_turn) = ONE_AT_A_TIME.acquire().await else { return Left::default() };
        let read = tokio::task::spawn_blocking(move || recover::recover(&self.0)).await;
        let recovered = match read {
            Ok(Ok(recovered)) => recovered,
            Ok(Err(problem)) => return Left { problem: Some(problem), ..Left::default() },
            Err(error) => return Left { problem: Some(error.to_string()), ..Left::default() },
        };
        let left = Left { open: recovered.open.clone(), unread: recovered.unread, ..Left::default() };
        match dead_process::inherit(shared, agent, recovered).await {
            Ok(rows) => Left { rows, ..left },
            Err(problem) => Left { problem: Some(problem), ..left },
        }
    }
}

impl Left {
    /// What could not be taken, for people; None where all of it was.
    pub(super) fn remark(&self) -> Option<String> {
        match (&self.problem, self.unread) {
            (Some(problem), _) => Some(format!("its rings were not read to the end: {problem}")),
            (None, 1..) => Some(format!("{} records of its rings could not be read", self.unread)),
            (None, 0) => None,
        }
    }
}
