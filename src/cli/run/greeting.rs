//! The messages of a launcher and its collector at the collector's start: a line of JSON each, on the collector's standard
//! input and output. Its input stays open for as long as the launcher lives.

use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;

use probe_common::error::{Error, Result};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// The launcher's message: what the collector's command line does not say.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::cli) struct LaunchMessage {
    /// The command that the launcher starts, as a person would type it. It may be longer than an argument can be.
    pub(in crate::cli) command: String,
    /// Whether the run gets another name where one of its name is live.
    pub(in crate::cli) may_rename: bool,
}

/// The collector's message: it listens.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::cli) struct ReadyMessage {
    /// Name of the run with its number: "gpt@2".
    pub(in crate::cli) run: String,
    /// Address at which agents and commands of this machine reach the collector: "unix:/…".
    pub(in crate::cli) endpoint: String,
}

impl LaunchMessage {
    /// Reads the message, in the collector.
    pub(in crate::cli) fn read() -> Result<Self> {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|error| Error::usage("--launched is for probe run alone").because(error))
    }
}

/// Resolves when the launcher is gone, in the collector. Call it within a tokio runtime.
pub(in crate::cli) async fn launcher_gone() -> Result<()> {
    let mut input = Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)?;
    let mut ignored = [0; 64];
    while input.read(&mut ignored).await? > 0 {}
    Ok(())
}

impl ReadyMessage {
    /// Sends the greeting, in the collector. If the launcher has ended, its end is seen as such.
    pub(in crate::cli) fn say(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            let _ = writeln!(io::stdout().lock(), "{line}");
        }
    }
}
