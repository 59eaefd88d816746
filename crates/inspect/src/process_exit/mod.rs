//! How processes end that are not children of this one: the kernel tells it, through a descriptor that is held while they live.

mod kernel_log;
mod out_of_memory;
mod pidfd;
mod zombie;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::unix::AsyncFd;

use self::kernel_log::KernelLog;
use self::out_of_memory::OutOfMemoryKills;
use self::pidfd::PidFd;
use crate::stacks::processes;

/// Pause before the kernel is asked again: between a process's death and its parent's wait, neither the descriptor nor /proc may
/// say how it ended.
const ASK_AGAIN: Duration = Duration::from_millis(10);
const MAX_ASKED: usize = 50;

/// How a process ended, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessEnd {
    /// The exit status, where no signal ended the process.
    pub exit_status: Option<i32>,
    /// The signal that ended the process: SIGKILL.
    pub signal: Option<String>,
    /// The cause of the end, where the kernel tells one.
    pub cause: Option<String>,
}

/// An exit status as shells say it: the command's own, or 128 and the signal.
pub fn shell_status(ended: ExitStatus) -> u8 {
    ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or_default()) as u8
}

impl ProcessEnd {
    /// The end of a child.
    pub fn of(ended: ExitStatus) -> Self {
        Self::of_wait_status(ended.into_raw())
    }

    /// The end in words: "was ended by SIGKILL".
    pub fn in_words(&self) -> String {
        match (&self.signal, self.exit_status) {
            (Some(signal), _) => format!("was ended by {signal}"),
            (None, Some(status)) => format!("ended with exit status {status}"),
            (None, None) => "is gone, and how it ended is not known".to_owned(),
        }
    }

    /// The end by a wait status, as the kernel keeps it.
    pub fn of_wait_status(status: i32) -> Self {
        match status & 0x7f {
            0 => Self { exit_status: Some((status >> 8) & 0xff), ..Self::default() },
            signal => Self { signal: Some(signal_name(signal)), ..Self::default() },
        }
    }

    /// Whether the process is known to have exited with status 0.
    pub fn is_good(&self) -> bool {
        self.exit_status == Some(0)
    }
}

/// The name of a signal, such as SIGKILL, or its number where it has no name.
fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// A process that is watched until it ends. Another process that gets its number afterwards is not taken for it.
#[derive(Debug)]
pub struct WatchedProcess {
    pid: i32,
    descriptor: AsyncFd<PidFd>,
    /// When the process began, in ticks of the kernel.
    started: Option<u64>,
    kills: Option<OutOfMemoryKills>,
    log: Option<KernelLog>,
}

impl WatchedProcess {
    /// Watches the process `pid` if `named` is one of its numbers (in a container it may have another number than here). Call it
    /// within a tokio runtime.
    ///
    /// # Errors
    /// There is no such process, or the kernel is older than 5.3.
    pub fn watch(pid: i32, named: i32) -> io::Result<Self> {
        let descriptor = PidFd::open(pid)?;
        let started = processes::started(pid);
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        // Read after the descriptor was opened, so the numbers are of that process, or it has ended.
        if !zombie::names(pid).contains(&named) {
            return Err(gone());
        }
        let (kills, log) = (OutOfMemoryKills::before(pid), KernelLog::open());
        let descriptor = descriptor.watched()?;
        Ok(Self { pid, descriptor, started, kills, log })
    }

    /// Resolves with how the process ended, when it has ended.
    pub async fn ended(self) -> ProcessEnd {
        // Without the descriptor nothing is known.
        if self.descriptor.readable().await.is_err() {
            return ProcessEnd::default();
        }
        let mut end = ProcessEnd::default();
        for _ in 0..MAX_ASKED {
            if let Some(status) = self.wait_status() {
                end = ProcessEnd::of_wait_status(status);
                break;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        end.cause = self.cause(&end);
        end
    }

    /// The wait status that the parent gets or got; None where the kernel does not tell it (or not yet).
    fn wait_status(&self) -> Option<i32> {
        self.descriptor.get_ref().wait_status().or_else(|| zombie::wait_status(self.pid, self.started?))
    }

    fn cause(&self, end: &ProcessEnd) -> Option<String> {
        let signal = end.signal.as_deref()?;
        let killed = (signal == Signal::SIGKILL.as_str()).then(|| self.kills.as_ref()?.since()).flatten();
        let logged = self.log.as_ref().and_then(|log| log.about(self.pid));
        let causes: Vec<String> = killed.into_iter().chain(logged).collect();
        (!causes.is_empty()).then(|| causes.join("; "))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A shell that runs `what` when its input ends.
    fn shell(what: &str) -> (Child, WatchedProcess) {
        let mut command = Command::new("sh");
        let child = command.args(["-c", &format!("read line; {what}")]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let process = WatchedProcess::watch(pid, pid).unwrap();
        (child, process)
    }

    async fn end_of(what: &str, reaped: bool) -> ProcessEnd {
        let (mut child, process) = shell(what);
        drop(child.stdin.take());
        if reaped {
            child.wait().unwrap();
        }
        let end = tokio::time::timeout(LONG, process.ended()).await.unwrap();
        child.wait().unwrap();
        end
    }

    #[tokio::test]
    async fn a_process_that_nobody_has_reaped_says_how_it_ended() {
        assert_eq!(end_of("exit 3", false).await, ProcessEnd { exit_status: Some(3), ..ProcessEnd::default() });
        assert_eq!(end_of("exit 0", false).await, ProcessEnd { exit_status: Some(0), ..ProcessEnd::default() });
        assert_eq!(
            end_of("kill -9 $$", false).await,
            ProcessEnd { signal: Some("SIGKILL".into()), ..ProcessEnd::default() }
        );
        assert_eq!(end_of("kill -SEGV $$", false).await.signal.as_deref(), Some("SIGSEGV"));
    }

    /// From Linux 6.15 on the descriptor says how a reaped process ended; before that nothing does, and nothing is made up.
    #[tokio::test]
    async fn a_process_that_was_reaped_says_it_too_or_nothing() {
        let end = end_of("exit 3", true).await;
        assert!(
            end == ProcessEnd { exit_status: Some(3), ..ProcessEnd::default() } || end == ProcessEnd::default(),
            "{end:?}"
        );
        let end = end_of("kill -9 $$", true).await;
        assert!(end.signal.as_deref() == Some("SIGKILL") || end == ProcessEnd::default(), "{end:?}");
    }

    #[tokio::test]
    async fn a_process_is_only_watched_under_its_own_number() {
        let (mut child, _process) = shell("exit 0");
        let pid = child.id() as i32;
        assert!(WatchedProcess::watch(pid, pid + 1).is_err());
        assert!(WatchedProcess::watch(i32::MAX, i32::MAX).is_err());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(WatchedProcess::watch(pid, pid).is_err(), "it has ended");
    }

    #[test]
    fn wait_statuses() {
        assert_eq!(ProcessEnd::of_wait_status(768).exit_status, Some(3));
        assert_eq!(ProcessEnd::of_wait_status(139).signal.as_deref(), Some("SIGSEGV"), "with a core dump");
        assert_eq!(ProcessEnd::of_wait_status(40).signal.as_deref(), Some("signal 40"));
        assert!(ProcessEnd::of_wait_status(0).is_good() && !ProcessEnd::default().is_good());
    }
}
