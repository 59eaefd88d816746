//! The collector: keeps what the agents of one run send, and answers for it.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::paths::Listen;

/// What a collector is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The run's name, without a number.
    pub run: String,
    /// What `probe run` starts; empty for `probe serve`.
    pub command: String,
    /// Where to listen, beside the run's own socket in the runtime directory, which is always there.
    pub listen: Vec<Listen>,
    /// Bytes that rows may take in memory.
    pub memory: usize,
    /// File with the token that every call over TCP must carry. TCP is refused without one.
    pub token_file: Option<PathBuf>,
    /// How long no agent may be live before [`Collector::idle`] resolves; None: it never does.
    pub exit_when_idle: Option<Duration>,
}

/// A running collector.
#[derive(Debug)]
pub struct Collector {}

impl Collector {
    /// Takes the run's directory, listens, serves. Refused where a run of that name is live.
    pub async fn start(options: Options) -> Result<Self> {
        let _ = options;
        Err(Error::failed("not there yet"))
    }

    /// The run with its number: "gpt@2".
    pub fn run(&self) -> &str {
        ""
    }

    /// Where agents and commands of this machine reach it: "unix:/…".
    pub fn endpoint(&self) -> String {
        String::new()
    }

    /// Agents that are or were connected.
    pub fn agent_count(&self) -> usize {
        0
    }

    /// Resolves when [`Options::exit_when_idle`] holds: there was an agent and none has been live for so long, or none came within a minute.
    pub async fn idle(&self) {
        std::future::pending::<()>().await;
    }

    /// Waits a little for live agents to say goodbye, writes the run directory, and takes the socket away.
    pub async fn stop(self, exit_status: Option<i32>) -> Result<()> {
        let _ = exit_status;
        Ok(())
    }
}

/// Bytes that rows may take: PROBE_MEMORY, else a quarter of the machine's memory, at most 2 GiB.
pub fn memory_limit() -> Result<usize> {
    Ok(2 << 30)
}
