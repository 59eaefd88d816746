//! The statement that starts the agent in a process, and the report of how that went.
//!
//! The statement starts a thread and is done, in microseconds: all that takes longer happens on that thread. The command's
//! directory has a ticket, which the first one takes: the process that begins, or the command that gives up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

const SOURCE: &str = include_str!("bootstrap.py");
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The settings that the process is given.
#[derive(Debug, Serialize)]
pub struct AttachSettings<'a> {
    pub run: &'a str,
    pub collector: &'a str,
    pub detail: Option<&'a str>,
    pub patience_s: f64,
    /// Directories that may have the agent's package, for a process that has none.
    pub packages: &'a [PathBuf],
}

/// What an agent that was asked to start is doing, in the words of `probe_agent.agent.AttachState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum AttachState {
    #[serde(rename = "recording")]
    Recording,
    /// It records once the program has imported torch.
    #[serde(rename = "waits for torch")]
    WaitsForTorch,
    /// It was there before.
    #[serde(rename = "has an agent")]
    HasAgent,
    /// The word of another version.
    #[serde(other)]
    Unknown,
}

/// The report of the process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct BootstrapReport {
    /// What went wrong.
    pub error: Option<String>,
    /// Why the process refused.
    pub refused: Option<String>,
    pub state: Option<AttachState>,
    /// Seconds that the main thread stood still.
    pub waited_s: Option<f64>,
    /// The run of the agent that was there before.
    pub run: Option<String>,
    pub collector: Option<String>,
    /// What is wrong, by the agent's word.
    pub problem: Option<String>,
}

/// A directory that the process and this command both see.
#[derive(Debug)]
pub struct SharedDirectory {
    directory: TempDir,
}

impl SharedDirectory {
    /// Makes one in directory `parent`, for process `pid`.
    ///
    /// # Errors
    /// The process sees another directory under that path, or none: it is in a container, or in another mount namespace.
    pub fn set_up(parent: &Path, pid: i32) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix(&format!("attach-{pid}-")).tempdir_in(parent);
        let directory = directory.map_err(|error| io_error_at(parent, error))?;
        let ticket = directory.path().join("ticket");
        fs::write(&ticket, "").map_err(|error| io_error_at(&ticket, error))?;
        let desk = Self { directory };
        if !is_seen(pid, desk.directory.path()) {
            return Err(Error::failed(format!(
                "process {pid} does not see {}: it is in a container",
                parent.display()
            ))
            .hint("run probe attach in there, or name a directory that both see in PROBE_RUNTIME_DIR"));
        }
        Ok(desk)
    }

    /// Path at which a script for the process may be written.
    pub fn script(&self) -> PathBuf {
        self.directory.path().join("script.py")
    }

    /// The statement that the process is to run.
    pub fn statement(&self, settings: &AttachSettings<'_>) -> Result<String> {
        let mut settings = serde_json::to_value(settings).map_err(Error::caused)?;
        settings["directory"] = self.directory.path().to_string_lossy().into();
        Ok(format!(
            "try:\n __import__('threading'); __import__('_thread').start_new_thread(__import__('builtins').exec, ({}, {{'SETTINGS': {}, '__name__': 'probe_bootstrap'}}))\n\
             except KeyboardInterrupt:\n __import__('_thread').interrupt_main()\n\
             except BaseException:\n pass\n",
            literal(SOURCE),
            literal(&settings.to_string()),
        ))
    }

    /// Waits for the report of the process; None where it did not begin within `patience`, and then it will not. Once it has
    /// begun it gets `more` time, since it waits for nothing longer than its settings allow.
    pub fn wait(&self, pid: i32, patience: Duration, more: Duration) -> Result<Option<BootstrapReport>> {
        let begun = Instant::now();
        let file = self.directory.path().join("report");
        let mut has_begun = false;
        loop {
            match fs::read(&file) {
                Ok(report) => {
                    return serde_json::from_slice(&report).map(Some).map_err(Error::caused);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_error_at(&file, error)),
            }
            if !Path::new(&format!("/proc/{pid}")).exists() {
                return Err(Error::unreachable(format!("process {pid} ended meanwhile")));
            }
            if !has_begun && begun.elapsed() > patience {
                if self.take_back() {
                    return Ok(None);
                }
                has_begun = true;
            }
            // The process had begun when the command gave up, and has not reported in the time that it gets.
            if has_begun && begun.elapsed() > patience + more {
                return Err(Error::limit(format!("process {pid} started to attach but did not report the result")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Takes the ticket back. Returns whether the process has not begun, and so will not.
    fn take_back(&self) -> bool {
        let ticket = self.directory.path().join("ticket");
        fs::rename(&ticket, self.directory.path().join("taken back")).is_ok()
    }
}

/// Whether process `pid` finds the same file at `path` as this one does.
pub(super) fn is_seen(pid: i32, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(inside) = path.strip_prefix("/") else { return false };
    let theirs = fs::metadata(Path::new(&format!("/proc/{pid}/root")).join(inside));
    let ours = fs::metadata(path);
    matches!((ours, theirs), (Ok(ours), Ok(theirs)) if (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()))
}

/// A Python string literal of ASCII characters for `text`.
fn literal(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 2);
    written.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => written.extend(['\\', c]),
            ' '..='~' => written.push(c),
            _ => written.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    written.push('"');
    written
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn any_text_becomes_a_literal() {
        assert_eq!(literal("a\"b\\c\né\u{1f600}\0"), r#""a\"b\\c\U0000000a\U000000e9\U0001f600\U00000000""#);
    }

    #[test]
    fn what_is_taken_back_is_not_begun() {
        let parent = tempfile::tempdir().unwrap();
        let me = std::process::id() as i32;
        let desk = SharedDirectory::set_up(parent.path(), me).unwrap();
        assert!(desk.wait(me, Duration::from_millis(2), Duration::ZERO).unwrap().is_none());
        assert!(!desk.take_back());
        fs::write(desk.directory.path().join("report"), r#"{"state": "recording", "waited_s": 0.5, "new": 1}"#)
            .unwrap();
        let report = desk.wait(me, Duration::from_millis(2), Duration::ZERO).unwrap().unwrap();
        assert_eq!((report.state, report.waited_s), (Some(AttachState::Recording), Some(0.5)));
    }
}
