//! The account of a process that ended badly.

use super::kept::KeptByModules;

/// Processes of which the whole account is asked; of the others only how they ended.
pub(crate) const MAX_ACCOUNTS: usize = 32;

/// How a run's processes ended.
#[derive(Debug, Default)]
pub(crate) struct CrashAccount {
    /// Processes that ended badly, in the order in which they ended.
    pub(crate) accounts: Vec<CrashedProcess>,
    /// Number of processes that did not end badly.
    pub(crate) well: usize,
    /// Number of live processes among `well`.
    pub(crate) live: usize,
    /// In one sentence, which ranks had not entered a collective that others waited in, or did something else; None where nothing
    /// shows that.
    pub(crate) collectives: Option<String>,
    /// Exit status of the command; None while it runs, and where `probe run` did not start it.
    pub(crate) command_status: Option<i64>,
}

/// A process that ended badly.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CrashedProcess {
    pub(crate) host: String,
    pub(crate) pid: i64,
    pub(crate) rank: Option<i64>,
    /// The state, as in probe.agents.
    pub(crate) state: String,
    pub(crate) ended: Option<i64>,
    pub(crate) exit_status: Option<i64>,
    pub(crate) signal: Option<String>,
    pub(crate) cause: Option<String>,
    pub(crate) last_seen: i64,
    /// Steps finished, by its last report.
    pub(crate) steps: i64,
    /// When its newest step was over (ns since 1970).
    pub(crate) last_step: Option<i64>,
    pub(crate) module: Option<LastInterval>,
    pub(crate) collective: Option<LastCollective>,
    pub(crate) memory: Vec<MemoryReadings>,
    pub(crate) kept: Option<KeptByModules>,
    /// Name, value and step.
    pub(crate) metrics: Vec<(String, Option<f64>, i64)>,
    /// Name, duration (s) and step.
    pub(crate) spans: Vec<(String, f64, i64)>,
    pub(crate) exceptions: Vec<RaisedException>,
    /// Frames of the main thread in the newest capture, innermost first, and when that was taken.
    pub(crate) stack: Vec<String>,
    pub(crate) captured: Option<i64>,
    /// Events of the process before its end: time (ns since 1970) and message.
    pub(crate) events: Vec<(i64, String)>,
}

/// The module that was entered last and not left; where there was none, or that is not known, the one whose interval was
/// recorded last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LastInterval {
    pub(crate) module: String,
    pub(crate) stage: String,
    pub(crate) step: i64,
    /// Whether the module was entered and not left.
    pub(crate) inside: bool,
}

/// The collective that was issued last; an unfinished one takes precedence over a finished one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LastCollective {
    pub(crate) operation_type: String,
    pub(crate) group: String,
    pub(crate) seq: i64,
    pub(crate) bytes: i64,
    pub(crate) status: String,
    pub(crate) step: i64,
}

/// Memory of a device, or of the host (cpu), in MB.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MemoryReadings {
    pub(crate) device: String,
    pub(crate) first: Option<f64>,
    /// A minute before `last`.
    pub(crate) before: Option<f64>,
    pub(crate) last: Option<f64>,
    pub(crate) peak: Option<f64>,
}

/// An exception.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RaisedException {
    pub(crate) ts: i64,
    pub(crate) exception: String,
    pub(crate) message: String,
    pub(crate) traceback: String,
    pub(crate) uncaught: bool,
    pub(crate) main: bool,
    /// Name of the thread.
    pub(crate) thread: Option<String>,
    pub(crate) module: Option<String>,
    pub(crate) stage: Option<String>,
    /// Function, file and line.
    pub(crate) location: Option<String>,
    pub(crate) memory: Option<String>,
}

impl CrashedProcess {
    /// "was ended by SIGKILL".
    pub(crate) fn in_words(&self) -> String {
        match (&self.signal, self.exit_status) {
            (Some(signal), _) => format!("was ended by {signal}"),
            (None, Some(status)) => format!("ended with exit status {status}"),
            (None, None) => "was lost, and how it ended is not known".to_owned(),
        }
    }

    /// The exception that is shown: the one that ended the process, else the newest.
    pub(crate) fn exception(&self) -> Option<&RaisedException> {
        self.exceptions.iter().find(|raised| raised.uncaught && raised.main).or(self.exceptions.first())
    }

    /// Further exceptions that ended a thread, oldest first: other threads may have waited for what it was to give.
    pub(crate) fn ended_threads(&self) -> impl Iterator<Item = &RaisedException> {
        let shown = self.exception();
        self.exceptions.iter().rev().filter(move |raised| raised.uncaught && !raised.main && Some(*raised) != shown)
    }

    /// What accounts have in common that are shown as one.
    fn key(&self) -> impl PartialEq + '_ {
        let exception = self.exception().map(|raised| (&raised.exception, &raised.location));
        let module = self.module.as_ref().map(|interval| (&interval.module, &interval.stage, interval.inside));
        (self.in_words(), self.cause.is_some(), self.steps, exception, module)
    }

    /// Whether the two accounts are shown as one.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
