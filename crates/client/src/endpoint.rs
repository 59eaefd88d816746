//! What may stand as ENDPOINT, and what it means: the only module that knows. [`crate::discover`] finds it.
//!
//! | written | meaning |
//! |---|---|
//! | `4711` | the training process with that pid: its rows alone |
//! | `gpt`, `gpt@2` | a run: the live one of that name, else the newest recorded one; with a number, that one |
//! | `unix:PATH`, `/…/x.sock` | a collector's socket |
//! | `HOST:PORT` | a collector's TCP port |
//! | a directory | a recorded run |

use std::fmt;
use std::path::{Path, PathBuf};

use probe_common::error::{Error, Result};
use probe_common::paths::{self, ProbeDirectories, SocketState};
use probe_common::run_name::RunName;
use probe_store::runs;

/// An ENDPOINT as it was written, parsed but not looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A training process.
    Pid(u32),
    /// A run by name.
    Run(RunName),
    /// A unix socket.
    Socket(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
    /// A run directory.
    Directory(PathBuf),
}

impl Endpoint {
    /// Parses `text`; the error lists the valid forms.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(not_understood(text)) } else { Ok(Self::Socket(path.into())) };
        }
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(Self::Pid).map_err(|_| not_understood(text));
        }
        if text.contains('/') || text == "." || text == ".." {
            let path = Path::new(text);
            return Ok(if text.ends_with(".sock") || paths::socket_state(path) == SocketState::Live {
                Self::Socket(path.into())
            } else {
                Self::Directory(path.into())
            });
        }
        if let Some((host, port)) = text.rsplit_once(':') {
            let is_valid = !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
            return if is_valid { Ok(Self::Tcp(text.to_owned())) } else { Err(not_understood(text)) };
        }
        RunName::parse(text).map(Self::Run)
    }
}

fn not_understood(text: &str) -> Error {
    Error::unreachable(format!("'{text}' is not an endpoint"))
        .hint("an endpoint is a run's name, a pid, unix:PATH, HOST:PORT or a run's directory")
}

/// Where a collector or its rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunLocation {
    /// The socket of a live collector on this machine.
    Socket(PathBuf),
    /// `HOST:PORT` of a live collector.
    Tcp(String),
    /// The directory of a run that has ended.
    Directory(PathBuf),
}

impl fmt::Display for RunLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
            Self::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}

impl RunLocation {
    /// The directory of a run whose collector has ended since this location was found.
    pub(crate) fn ended_meanwhile(&self, directories: &ProbeDirectories) -> Option<PathBuf> {
        let Self::Socket(socket) = self else { return None };
        let run = RunName::numbered(socket.file_stem()?.to_str()?)?.to_string();
        let has_ended = *socket == directories.socket_for(&run) && paths::socket_state(socket) != SocketState::Live;
        has_ended.then(|| runs::resolve_in(directories, &run).ok()).flatten()
    }

    /// The run's name where the location has one, for messages; else the location.
    pub fn name(&self) -> String {
        let part = match self {
            Self::Socket(path) => path.file_stem(),
            Self::Directory(path) => path.file_name(),
            Self::Tcp(_) => None,
        };
        part.map_or_else(|| self.to_string(), |part| part.to_string_lossy().into_owned())
    }
}

/// An ENDPOINT that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEndpoint {
    /// Where the run's rows are.
    pub location: RunLocation,
    /// The process whose rows alone are read; None for all.
    pub pid: Option<u32>,
}

/// A hint with the runs that exist.
pub fn live_hint() -> String {
    let live = paths::list_sockets().unwrap_or_default();
    if !live.is_empty() {
        let names: Vec<String> = live.into_iter().map(|(run, _)| run).collect();
        return format!("live now: {}", names.join(", "));
    }
    match runs::list_runs().ok().and_then(|mut all| all.pop()) {
        Some(run) => format!("nothing is live; the newest recorded run is {} (probe runs lists them all)", run.name),
        None => "nothing is live: probe run -- python train.py starts a training run that can be asked".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_run_that_has_ended_since_it_was_found_has_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let directories =
            ProbeDirectories { home: directory.path().join("home"), runtime: directory.path().join("run") };
        std::fs::create_dir_all(&directories.runtime).unwrap();
        let run = RunName::parse("gpt@1").unwrap();
        let location = RunLocation::Socket(directories.socket_for("gpt@1"));
        assert_eq!(location.ended_meanwhile(&directories), None, "there is no such run");
        let recorded = directories.runs().join("gpt@1");
        std::fs::create_dir_all(&recorded).unwrap();
        runs::RunInfo::begin(&run, "train.py").write(&recorded).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(directories.socket_for("gpt@1")).unwrap();
        assert_eq!(location.ended_meanwhile(&directories), None, "its collector is there");
        drop(listener);
        assert_eq!(location.ended_meanwhile(&directories), Some(recorded));
        assert_eq!(RunLocation::Socket(directory.path().join("gpt@1.sock")).ended_meanwhile(&directories), None);
    }

    #[test]
    fn each_form_is_told_apart() {
        let run = |text: &str| Endpoint::Run(RunName::parse(text).unwrap());
        let cases = [
            ("4711", Endpoint::Pid(4711)),
            ("gpt", run("gpt")),
            ("gpt@2", run("gpt@2")),
            ("unix:/run/x.sock", Endpoint::Socket("/run/x.sock".into())),
            ("unix:x", Endpoint::Socket("x".into())),
            ("./x.sock", Endpoint::Socket("./x.sock".into())),
            ("127.0.0.1:4317", Endpoint::Tcp("127.0.0.1:4317".into())),
            ("[::1]:4317", Endpoint::Tcp("[::1]:4317".into())),
            ("runs/gpt@1", Endpoint::Directory("runs/gpt@1".into())),
            (".", Endpoint::Directory(".".into())),
        ];
        for (text, expected) in cases {
            assert_eq!(Endpoint::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_none_says_what_it_could_be() {
        for text in ["", "host:", ":1", "host:99999", "unix:", "99999999999", "a b"] {
            assert!(Endpoint::parse(text).unwrap_err().hint_text().is_some(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "\\PC*") {
            let _ = Endpoint::parse(&text);
        }
    }
}
