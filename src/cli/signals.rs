//! Signals of the processes that stay: `run` hands them to its child, `serve` ends by them.
//!
//! A signal that this process was started to ignore (`nohup`, a shell's `&` in a script) stays ignored. A handler would take
//! that away, here and for the command that `run` starts: a signal with a handler gets its default in a new program.

use std::fs::{self, File};

use nix::sys::signal::Signal;
use nix::unistd::{getpgrp, tcgetpgrp};
use probe_common::error::Result;
use tokio::signal::unix::{self, SignalKind, signal};

/// The signals that would end this process; None for one that is ignored.
pub(super) struct EndingSignals {
    interrupt: Option<unix::Signal>,
    quit: Option<unix::Signal>,
    hangup: Option<unix::Signal>,
    terminate: Option<unix::Signal>,
    /// Ignored, but with a handler installed: a write beyond a limit of file sizes (`ulimit -f`) then fails as it does on a full
    /// disk, and does not end this process.
    _file_size: Option<unix::Signal>,
}

impl EndingSignals {
    /// Starts to receive the signals.
    pub(super) fn listen() -> Result<Self> {
        let ignored = ignored();
        let listen = |number: Signal, kind| match ignored & 1 << (number as u64 - 1) {
            0 => signal(kind).map(Some),
            _ => Ok(None),
        };
        Ok(Self {
            interrupt: listen(Signal::SIGINT, SignalKind::interrupt())?,
            quit: listen(Signal::SIGQUIT, SignalKind::quit())?,
            hangup: listen(Signal::SIGHUP, SignalKind::hangup())?,
            terminate: listen(Signal::SIGTERM, SignalKind::terminate())?,
            _file_size: listen(Signal::SIGXFSZ, SignalKind::from_raw(Signal::SIGXFSZ as i32))?,
        })
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            () = next_of(&mut self.interrupt) => Signal::SIGINT,
            () = next_of(&mut self.quit) => Signal::SIGQUIT,
            () = next_of(&mut self.hangup) => Signal::SIGHUP,
            () = next_of(&mut self.terminate) => Signal::SIGTERM,
        }
    }
}

async fn next_of(signal: &mut Option<unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The signals that this process ignores, a bit each; none where the kernel does not say.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether a child in our process group has had this signal already: a terminal sends its own to all of the foreground
/// group, and a second Ctrl-C would interrupt the child's clean-up after the first.
pub(super) fn child_had_it(signal: Signal) -> bool {
    let by_terminal = matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
    by_terminal && File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}
