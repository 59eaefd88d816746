//! Starts a collector that died again, in the way in which the agent that found none started the first one.
//!
//! `probe serve --resume RUN` continues the run where its journal ends. Several ranks may try at once: a collector takes the lock
//! of the run's name, so that only one stays. It refuses a run that has ended, so that one that was stopped on purpose stays
//! stopped. The process is started from the uplink's thread, never from the one that trains.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pyo3::FromPyObject;

/// How long a lost collector may be back because it was started by other means.
const WAIT: Duration = Duration::from_secs(3);

/// How a collector is started again, as in `probe_agent.settings`.
#[derive(Debug, Clone, FromPyObject)]
pub struct Revival {
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
    started: Option<Child>,
}

impl Reviver {
    /// Notes that the collector of this run has just been lost.
    pub(super) fn lost(&mut self, run: String) {
        self.lost = Some((run, Instant::now()));
    }

    /// Starts another collector when it is time, because the old one is still gone: once for each loss.
    pub(super) fn still_gone(&mut self, revival: Option<&Revival>) {
        // A child that has ended must not stay as a zombie.
        if self.started.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
            self.started = None;
        }
        let Some(revival) = revival else { return };
        let Some((run, _)) = self.lost.take_if(|(_, since)| since.elapsed() >= WAIT) else { return };
        // If the start fails, nothing changes: the agent goes on trying to connect.
        self.started = start(revival, &run).ok();
    }
}

fn start(revival: &Revival, run: &str) -> std::io::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(&revival.log)?;
    Command::new(&revival.program)
        .args(["serve", "--resume", run])
        .args(&revival.arguments)
        .env_clear()
        .envs(revival.environment.iter().map(|(key, value)| (key, value)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // Ctrl-C at the training's terminal does not reach it.
        .process_group(0)
        .spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_started_for_every_loss_and_after_a_while() {
        let directory = std::env::temp_dir().join(format!("probe-revive-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let log = directory.join("log");
        let revival = Revival {
            program: "/bin/echo".into(),
            arguments: vec!["--more".into()],
            environment: Vec::new(),
            log: log.clone(),
        };
        let mut reviver = Reviver::default();
        reviver.still_gone(Some(&revival));
        assert!(reviver.started.is_none(), "nothing was lost");
        reviver.lost("gpt@2".into());
        reviver.still_gone(Some(&revival));
        assert!(reviver.started.is_none(), "it may be back in a moment");
        reviver.lost = reviver.lost.map(|(run, since)| (run, since.checked_sub(WAIT).expect("an earlier time")));
        reviver.still_gone(None);
        assert!(reviver.lost.is_some() && reviver.started.is_none(), "nobody said how");
        reviver.still_gone(Some(&revival));
        assert!(reviver.lost.is_none(), "once");
        assert!(reviver.started.take().expect("a child").wait().expect("its end").success());
        assert!(log.exists());
        std::fs::remove_dir_all(directory).expect("it goes");
    }
}
