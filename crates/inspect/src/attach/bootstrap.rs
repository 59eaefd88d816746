//! What a process is made to run so that the agent comes up in it, and how it says how that went.
//!
//! The statement starts a thread and is done, in microseconds: all that takes longer happens on that thread. A ticket in a
//! directory of the command's is taken by whoever comes first, the process that begins or the command that gave up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use probe_common::error::{Error, Result};
use probe_common::paths::named;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

const SOURCE: &str = include_str!("bootstrap.py");
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What the process is told.
#[derive(Debug, Serialize)]
pub struct Settings<'a> {
    pub run: &'a str,
    pub collector: &'a str,
    pub detail: Option<&'a str>,
    pub patience_s: f64,
    /// Where the agent's package may be, should the process have none.
    pub packages: &'a [PathBuf],
}

/// What the process says.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Report {
    /// What went wrong.
    pub error: Option<String>,
    /// Why it was not done.
    pub refused: Option<String>,
    /// `recording`, `waits for torch`, `has an agent` or `detached`.
    pub state: Option<String>,
    /// Seconds that the main thread stood still.
    pub waited_s: Option<f64>,
    /// Of the agent that was there.
    pub run: Option<String>,
    pub collector: Option<String>,
    /// What the agent has to complain about.
    pub problem: Option<String>,
}

/// A directory that the process and this command both see.
#[derive(Debug)]
pub struct Desk {
    directory: TempDir,
}

impl Desk {
    /// One in `place`, for process `pid`.
    ///
    /// # Errors
    /// The process sees another directory under that path, or none: it is in a container, or in another mount namespace.
    pub fn set_up(place: &Path, pid: i32) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix(&format!("attach-{pid}-")).tempdir_in(place);
        let directory = directory.map_err(|error| named(place, error))?;
        let ticket = directory.path().join("ticket");
        fs::write(&ticket, "").map_err(|error| named(&ticket, error))?;
        let desk = Self { directory };
        if !is_seen(pid, desk.directory.path()) {
            return Err(Error::failed(format!("process {pid} does not see {}: it is in a container", place.display()))
                .hint("run probe attach in there, or name a directory that both see in PROBE_RUNTIME_DIR"));
        }
        Ok(desk)
    }

    /// Where a script for the process may be written.
    pub fn script(&self) -> PathBuf {
        self.directory.path().join("script.py")
    }

    /// The statement.
    pub fn statement(&self, settings: &Settings<'_>) -> Result<String> {
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

    /// What the process says; None where it did not begin within `patience`, and then it won't. Once it has begun it is
    /// waited for, as it waits for nobody longer than it was told.
    pub fn wait(&self, pid: i32, patience: Duration, more: Duration) -> Result<Option<Report>> {
        let begun = Instant::now();
        let file = self.directory.path().join("report");
        let mut has_begun = false;
        loop {
            match fs::read(&file) {
                Ok(report) => {
                    return serde_json::from_slice(&report).map(Some).map_err(Error::caused);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(named(&file, error)),
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
            // Only of one that was asked to stay away, and had begun: the clock goes on between two looks at it.
            if has_begun && begun.elapsed() > patience + more {
                return Err(Error::limit(format!("process {pid} began, and did not say how it went")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Whether the process has not begun, and won't.
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

/// A Python string of ASCII letters that means `text`.
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
        let place = tempfile::tempdir().unwrap();
        let me = std::process::id() as i32;
        let desk = Desk::set_up(place.path(), me).unwrap();
        assert!(desk.wait(me, Duration::from_millis(2), Duration::ZERO).unwrap().is_none());
        assert!(!desk.take_back());
        fs::write(desk.directory.path().join("report"), r#"{"state": "recording", "waited_s": 0.5, "new": 1}"#)
            .unwrap();
        let report = desk.wait(me, Duration::from_millis(2), Duration::ZERO).unwrap().unwrap();
        assert_eq!((report.state.as_deref(), report.waited_s), (Some("recording"), Some(0.5)));
    }
}
