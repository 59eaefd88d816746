//! What a launcher and its collector say to each other when the collector starts: a line of JSON each, on the collector's
//! standard input and output. Its input stays open for as long as the launcher lives.

use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;

use probe_common::error::{Error, Result};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// From the launcher: what the collector's command line does not say.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::cli) struct Launch {
    /// What it starts, as a person would type it. It may be longer than an argument can be.
    pub(in crate::cli) command: String,
}

/// From the collector: it listens.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::cli) struct Ready {
    /// With its number: "gpt@2".
    pub(in crate::cli) run: String,
    /// Where agents and commands of this machine reach it: "unix:/…".
    pub(in crate::cli) endpoint: String,
}

impl Launch {
    /// Reads it, in the collector.
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

impl Ready {
    /// Sends the greeting, in the collector. If the launcher has ended, its end is seen as such.
    pub(in crate::cli) fn say(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            let _ = writeln!(io::stdout().lock(), "{line}");
        }
    }
}
