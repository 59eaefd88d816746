//! `run.json`: a run's description, for people and for `probe runs`. It is written when the run begins and when it ends.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use probe_common::durable;
use probe_common::error::{Error, Result};
use probe_common::paths::{host_name, io_error_at};
use probe_common::run_name::RunName;
use serde::{Deserialize, Serialize};

use super::git::GitState;
use super::rfc3339;

/// The file's name within a run directory.
const FILE: &str = "run.json";

/// Whether a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// A collector is recording it.
    Live,
    /// It ended, and its tables were written.
    Ended,
    /// Its collector went away without writing it.
    Lost,
}

impl RunState {
    /// The state's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Ended => "ended",
            Self::Lost => "lost",
        }
    }
}

/// The contents of run.json.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Name of the run with its number: "gpt@2".
    pub run: String,
    /// The command that `probe run` started. Without one it is empty, and when the run has ended that of its first process.
    pub command: String,
    /// Host name of the collector.
    pub host: String,
    /// Process id of the collector there.
    pub pid: u32,
    /// Live or ended, as the collector wrote it last.
    pub state: RunState,
    /// When the run began (RFC 3339).
    #[serde(with = "rfc3339")]
    pub started: Timestamp,
    /// When the run ended (RFC 3339).
    #[serde(with = "rfc3339::optional", default)]
    pub ended: Option<Timestamp>,
    /// The command's exit status, where there was a command and it ended by itself.
    #[serde(default)]
    pub exit_status: Option<i32>,
    /// Ranks that were seen; empty where no process was in a process group.
    #[serde(default)]
    pub ranks: BTreeSet<i32>,
    /// Processes that were seen.
    #[serde(default)]
    pub agents: usize,
    /// Version of the collector.
    pub collector_version: String,
    /// Versions of the agents.
    #[serde(default)]
    pub agent_versions: BTreeSet<String>,
    /// Versions of Python in them.
    #[serde(default)]
    pub python_versions: BTreeSet<String>,
    /// Versions of torch in them.
    #[serde(default)]
    pub torch_versions: BTreeSet<String>,
    /// The last step that has a row; absent while the run goes on, and where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<i64>,
    /// Bytes of the run's files on disk when it ended; absent while the run goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The directory in which the command was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The git commit of that directory; absent outside of a repository, before its first commit, or without git.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_commit: Option<String>,
    /// Whether files that git tracks there differed from that commit; absent where git took too long to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_dirty: Option<bool>,
}

impl RunInfo {
    /// The description of a run that begins now in the current directory, recorded by this process. Asks git, which takes up
    /// to a second.
    pub fn begin(name: &RunName, command: &str) -> Self {
        let directory = std::env::current_dir().ok();
        let git = directory.as_deref().map(GitState::of).unwrap_or_default();
        Self {
            run: name.to_string(),
            command: command.to_owned(),
            host: host_name(),
            pid: std::process::id(),
            state: RunState::Live,
            started: Timestamp::now(),
            ended: None,
            exit_status: None,
            ranks: BTreeSet::new(),
            agents: 0,
            collector_version: probe_proto::VERSION.to_owned(),
            agent_versions: BTreeSet::new(),
            python_versions: BTreeSet::new(),
            torch_versions: BTreeSet::new(),
            last_step: None,
            bytes: None,
            directory,
            git_commit: git.commit,
            git_dirty: git.dirty,
        }
    }

    /// The description of the run when this process goes on with it.
    pub fn resumed(self) -> Self {
        Self { pid: std::process::id(), state: RunState::Live, ended: None, ..self }
    }

    /// Reads the file of a run directory.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE);
        let text = fs::read(&path).map_err(|error| io_error_at(&path, error))?;
        serde_json::from_slice(&text).map_err(|error| Error::failed(path.display().to_string()).because(error))
    }

    /// Writes the file of a run directory, whole or not at all.
    pub fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        let text = serde_json::to_vec_pretty(self).map_err(|error| Error::failed(FILE).because(error))?;
        let unfinished = directory.join(format!(".{FILE}.new"));
        let written = fs::File::create(&unfinished).and_then(|mut file| {
            file.write_all(&text)?;
            file.write_all(b"\n")?;
            file.sync_all()
        });
        let renamed = written.and_then(|()| fs::rename(&unfinished, &path));
        renamed.and_then(|()| durable::sync_names(directory)).map_err(|error| {
            // Half a description says nothing, and would keep the directory of a run that did not begin.
            let _ = fs::remove_file(&unfinished);
            let hint = format!("make room there, or name another directory in {}", probe_proto::env::PROBE_HOME);
            io_error_at(&path, error).hint(hint)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use probe_common::fault::{self, DiskFault};

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut info = RunInfo::begin(&RunName::parse("gpt@2").unwrap(), "torchrun train.py");
        // A write succeeds only if a loss of power can't undo it.
        fault::set(dir.path(), DiskFault::Names, true);
        assert!(info.write(dir.path()).is_err());
        fault::set(dir.path(), DiskFault::Names, false);
        info.write(dir.path()).unwrap();
        assert_eq!(RunInfo::read(dir.path()).unwrap(), info);
        info.state = RunState::Ended;
        info.ended = Some(Timestamp::now());
        info.exit_status = Some(1);
        info.ranks.extend([0, 1]);
        info.write(dir.path()).unwrap();
        assert_eq!(RunInfo::read(dir.path()).unwrap(), info);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing half-written is left");
    }

    #[test]
    fn a_file_of_a_later_version_with_more_in_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"run":"a@1","command":"","host":"h","pid":1,"state":"ended","started":"2026-01-02T03:04:05Z","collector_version":"9","new":[1]}"#;
        fs::write(dir.path().join(FILE), text).unwrap();
        assert_eq!(RunInfo::read(dir.path()).unwrap().started.to_string(), "2026-01-02T03:04:05Z");
        fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(RunInfo::read(dir.path()).unwrap_err().to_string().contains("run.json"));
    }
}
