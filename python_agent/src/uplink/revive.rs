//! Starts a collector that died again, in the way in which the agent that found none started the first one.
//!
//! `probe serve --resume RUN` continues the run where its journal ends. Several ranks may try at once: a collector takes the lock
//! of the run's name, so that only one stays. It refuses a run that has ended, so that one that was stopped on purpose stays
//! stopped. The process is started from the uplink's thread, never from the one that trains.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pyo3::FromPyObject;

use crate::detached_process::{self, DetachedCommand};

/// How long a lost collector may be back because it was started by other means.
const WAIT: Duration = Duration::from_secs(3);

/// How a collector is started again, as in `probe_agent.settings`.
#[derive(Debug, Clone, FromPyObject)]
pub struct CollectorRestart {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Arguments after `serve --resume RUN`.
    pub arguments: Vec<OsString>,
    /// The environment as it was when the agent began: Python may change the process's own while it is read.
    pub environment: Vec<(OsString, OsString)>,
    /// File for the collector's standard error.
    pub log: PathBuf,
}

/// Starts a collector that is gone again.
#[derive(Debug, Default)]
pub(super) struct Reviver {
    /// The run that lost its collector, and when; None where there is nothing to do.
    lost: Option<(String, Instant)>,
}

impl Reviver {
    /// Notes that the collector of this run has just been lost.
    pub(super) fn lost(&mut self, run: String) {
        self.lost = Some((run, Instant::now()));
    }

    /// Starts another collector when it is time, because the old one is still gone: once for each loss.
    pub(super) fn still_gone(&mut self, revival: Option<&CollectorRestart>) {
        let Some(revival) = revival else { return };
        let Some((run, _)) = self.lost.take_if(|(_, since)| since.elapsed() >= WAIT) else { return };
        // If the start fails, nothing changes: the agent goes on trying to connect.
        let _ = start(revival, &run);
    }
}

fn start(revival: &CollectorRestart, run: &str) -> std::io::Result<()> {
    let mut arguments: Vec<OsString> = ["serve", "--resume", run].map(Into::into).to_vec();
    arguments.extend_from_slice(&revival.arguments);
    detached_process::start(&DetachedCommand {
        program: &revival.program,
        arguments: &arguments,
        environment: &revival.environment,
        log: OpenOptions::new().create(true).append(true).open(&revival.log)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_started_for_every_loss_and_after_a_while() {
        let directory = std::env::temp_dir().join(format!("probe-revive-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let log = directory.join("log");
        let revival = CollectorRestart {
            // It says on stderr that it has no script called serve.
            program: "/bin/sh".into(),
            arguments: vec!["--more".into()],
            environment: Vec::new(),
            log: log.clone(),
        };
        let mut reviver = Reviver::default();
        reviver.still_gone(Some(&revival));
        assert!(!log.exists(), "nothing was lost");
        reviver.lost("gpt@2".into());
        reviver.still_gone(Some(&revival));
        assert!(!log.exists(), "it may be back in a moment");
        reviver.lost = reviver.lost.map(|(run, since)| (run, since.checked_sub(WAIT).expect("an earlier time")));
        reviver.still_gone(None);
        assert!(reviver.lost.is_some() && !log.exists(), "nobody said how");
        reviver.still_gone(Some(&revival));
        assert!(reviver.lost.is_none(), "once");
        while std::fs::read_to_string(&log).expect("it was started").is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: asks only.
        let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        let why = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((waited, why), (-1, Some(libc::ECHILD)), "no child for the program to wait for");
        std::fs::remove_dir_all(directory).expect("it goes");
    }
}
