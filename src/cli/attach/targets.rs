//! The processes that are attached to, and whether that is allowed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use probe_common::error::{Error, ErrorKind, Result};
use probe_inspect::attach::{self, Interpreter};
use probe_inspect::stacks::{is_launcher, processes, without_agent};

/// How long an agent's thread may take to end once its collector has forgotten it, and the interval of the checks.
const TO_GO: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A process to attach to.
pub(super) struct AttachTarget {
    pub(super) pid: u32,
    pub(super) interpreter: Interpreter,
    pub(super) command: Vec<OsString>,
}

/// The process itself, or the training processes below it if it is a launcher or a shell.
pub(super) fn find(pid: u32) -> Result<Vec<AttachTarget>> {
    let number = i32::try_from(pid).map_err(|_| Error::unreachable(format!("there is no process {pid}")))?;
    check_user(pid)?;
    attach::check(number)?;
    let command = processes::command(pid).unwrap_or_default();
    let interpreter = Interpreter::find(number);
    let is_launcher = is_launcher(&command);
    if !is_launcher && let Ok(interpreter) = interpreter {
        return Ok(vec![AttachTarget { pid, interpreter, command }]);
    }
    let below = below(pid);
    match interpreter {
        Err(error) if below.is_empty() => return Err(error),
        _ if below.is_empty() => {
            return Err(Error::unreachable(format!("process {pid} is a launcher, and nothing below it has torch yet"))
                .hint("probe list shows processes that train; attach when it has started its workers"));
        }
        _ => {}
    }
    let mut found = Vec::new();
    for pid in below {
        match attach::check(pid as i32).and_then(|()| Interpreter::find(pid as i32)) {
            Ok(interpreter) => {
                found.push(AttachTarget { pid, interpreter, command: processes::command(pid).unwrap_or_default() })
            }
            // The process has ended since.
            Err(error) if error.kind() == ErrorKind::Unreachable => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Processes with torch below this one.
fn below(ancestor: u32) -> Vec<u32> {
    let is_below = |pid: u32| {
        let mut parent = i32::try_from(pid).ok().and_then(processes::parent);
        while let Some(above) = parent.filter(|above| *above > 1) {
            if above == ancestor {
                return true;
            }
            parent = i32::try_from(above).ok().and_then(processes::parent);
        }
        false
    };
    without_agent::find(&BTreeSet::new()).into_iter().map(|found| found.pid).filter(|pid| is_below(*pid)).collect()
}

/// The agent's socket is its user's alone, so root cannot attach on behalf of another user.
fn check_user(pid: u32) -> Result<()> {
    let ours = nix::unistd::geteuid();
    let theirs = fs::metadata(format!("/proc/{pid}"))
        .map_err(|_| {
            Error::unreachable(format!("there is no process {pid}")).hint("probe list shows those that train")
        })?
        .uid();
    if !ours.is_root() || theirs == 0 {
        return Ok(());
    }
    Err(Error::denied(format!(
        "process {pid} belongs to uid {theirs}, whose agent could not reach a collector of root's"
    ))
    .hint(format!("as that user: sudo -u '#{theirs}' probe attach {pid}")))
}

impl AttachTarget {
    /// Checks that the process can be attached to on this machine, and may be.
    pub(super) fn check(&self) -> Result<()> {
        attach::check_machine(&self.interpreter)?;
        attach::check(self.pid as i32)
    }

    /// Whether an agent's uplink runs in the process, to any collector. An agent that was just told to go may take a while to
    /// end. Processes that are checked together share that while, which begins at `asked_at`.
    pub(super) fn has_uplink(&self, asked_at: Instant) -> bool {
        while processes::has_uplink(self.pid) {
            if asked_at.elapsed() > TO_GO {
                return true;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        false
    }
}

/// Directories that hold the agent's package, as the wheel of this command installs it.
pub(super) fn packages() -> Vec<PathBuf> {
    let Some(prefix) = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.parent()?.to_owned())) else {
        return Vec::new();
    };
    let libraries = ["lib", "lib64"].map(|name| prefix.join(name));
    let pythons =
        libraries.iter().filter_map(|path| fs::read_dir(path).ok()).flatten().flatten().map(|entry| entry.path());
    let directories = pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    directories.filter(|directory| directory.join("probe_agent/__init__.py").exists()).collect()
}
