//! Starts a collector that died again, in the way in which the agent that found none started the first one.
//!
//! `probe serve --resume RUN` continues the run where its journal ends. Several ranks may try at once: a collector takes the lock
//! of the run's name, so that only one stays. It refuses a run that has ended, so that one that was stopped on purpose stays
//! stopped. The process is started from the uplink's thread, never from the one that trains.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use crate::detached_process::{self, DetachedCommand};

use super::settings::CollectorRestart;

/// How long a lost collector may be back because it was started by other means.
const WAIT: Duration = Duration::from_secs(3);
/// The pause before another one is started, because the last one has not answered either: at first, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// Starts a collector that is gone again.
#[derive(Debug, Default)]
pub(super) struct Reviver {
    /// The run that lost its collector; None where there is nothing to do.
    lost: Option<LostCollector>,
}

#[derive(Debug)]
struct LostCollector {
    run: String,
    /// When it was lost, or the last one was started.
    since: Instant,
    /// How long after that one is started.
    pause: Duration,
}

impl Reviver {
    /// Notes that the collector of this run has just been lost.
    pub(super) fn note_lost(&mut self, run: String) {
        self.lost = Some(LostCollector { run, since: Instant::now(), pause: WAIT });
    }

    /// Starts another collector when it is time, because the old one is still gone. One that dies before the agent has connected
    /// is followed by another, after longer and longer pauses: it may be reading a long journal.
    pub(super) fn restart_if_due(&mut self, revival: Option<&CollectorRestart>) {
        let Some(revival) = revival else { return };
        let Some(lost) = self.lost.as_mut().filter(|lost| lost.since.elapsed() >= lost.pause) else { return };
        (lost.since, lost.pause) = (Instant::now(), (lost.pause * 2).clamp(AGAIN.0, AGAIN.1));
        // If the start fails, nothing changes: the agent goes on trying to connect.
        let _ = start(revival, &lost.run);
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
    fn one_is_started_after_a_while_and_another_where_that_one_does_not_answer() {
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
        reviver.restart_if_due(Some(&revival));
        assert!(!log.exists(), "nothing was lost");
        reviver.note_lost("gpt@2".into());
        reviver.restart_if_due(Some(&revival));
        assert!(!log.exists(), "it may be back in a moment");
        let later = |reviver: &mut Reviver| {
            let lost = reviver.lost.as_mut().expect("it was lost");
            lost.since = lost.since.checked_sub(lost.pause).expect("an earlier time");
        };
        later(&mut reviver);
        reviver.restart_if_due(None);
        assert!(!log.exists(), "nobody said how");
        let wait_for_lines = |count: usize| {
            while std::fs::read_to_string(&log).expect("it was started").lines().count() < count {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let pause = |reviver: &Reviver| reviver.lost.as_ref().map(|lost| lost.pause);
        reviver.restart_if_due(Some(&revival));
        wait_for_lines(1);
        reviver.restart_if_due(Some(&revival));
        assert_eq!(pause(&reviver), Some(AGAIN.0), "it may be starting");
        later(&mut reviver);
        reviver.restart_if_due(Some(&revival));
        wait_for_lines(2);
        assert_eq!(pause(&reviver), Some(AGAIN.0 * 2));
        // SAFETY: asks only.
        let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        let why = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((waited, why), (-1, Some(libc::ECHILD)), "no child for the program to wait for");
        std::fs::remove_dir_all(directory).expect("it goes");
    }
}
