//! Signals of the processes that stay: `run` hands them to its child, `serve` ends by them.

use std::fs::File;

use nix::sys::signal::Signal;
use nix::unistd::{getpgrp, tcgetpgrp};
use probe_common::error::Result;
use tokio::signal::unix::{SignalKind, signal};

/// The signals that would end this process.
pub(super) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    /// From now on they come here.
    pub(super) fn listen() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.quit.recv() => Signal::SIGQUIT,
            _ = self.hangup.recv() => Signal::SIGHUP,
            _ = self.terminate.recv() => Signal::SIGTERM,
        }
    }
}

/// Whether a child in our process group has had this signal already: a terminal sends its own to all of the foreground
/// group, and a second Ctrl-C would interrupt the child's clean-up after the first.
pub(super) fn child_had_it(signal: Signal) -> bool {
    let by_terminal = matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
    by_terminal && File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}
