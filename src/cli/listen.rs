//! Where a collector listens beside its own socket: `--listen unix:PATH` or `--listen HOST:PORT`.

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::time::Duration;

use crate::collector::{self, Options};
use crate::error::Result;
use crate::paths::Listen;

/// Options of every command that is a collector.
#[derive(Debug, clap::Args)]
pub(super) struct Listening {
    /// Listen here too, beside the run's own socket (TCP only with --token-file)
    #[arg(long, value_name = "unix:PATH|HOST:PORT", value_parser = parse)]
    listen: Vec<Listen>,
    /// File with the token that every call over TCP must carry
    #[arg(long, value_name = "FILE", env = probe_proto::env::PROBE_TOKEN_FILE, hide_env_values = true)]
    token_file: Option<PathBuf>,
}

impl Listening {
    /// What a collector is started with.
    pub(super) fn options(self, run: String, command: String, exit_when_idle: Option<Duration>) -> Result<Options> {
        let memory = collector::memory_limit()?;
        let disk = collector::disk_limit()?;
        let (listen, token_file) = (self.listen, self.token_file);
        Ok(Options { run, command, resume: false, listen, memory, disk, token_file, exit_when_idle })
    }
}

fn parse(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() { Err("unix: is followed by a path".into()) } else { Ok(Listen::Unix(path.into())) };
    }
    let mut addresses =
        text.to_socket_addrs().map_err(|error| format!("{error}; write it like 127.0.0.1:7777 or unix:/run/x.sock"))?;
    addresses.next().map(Listen::Tcp).ok_or_else(|| "that host has no address".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths_are_told_apart() {
        assert_eq!(parse("unix:/x"), Ok(Listen::Unix("/x".into())));
        assert_eq!(parse("127.0.0.1:80"), Ok(Listen::Tcp(([127, 0, 0, 1], 80).into())));
        assert!(["unix:", "/x", "80", "127.0.0.1", "127.0.0.1:99999"].iter().all(|text| parse(text).is_err()));
    }
}
