//! Limits of queries, and the errors that say how to raise them.

use std::time::Duration;

use probe_common::error::{Error, Result};
use probe_proto::env::{PROBE_QUERIES, PROBE_QUERY_BYTES, PROBE_QUERY_MEMORY, PROBE_QUERY_ROWS, PROBE_QUERY_TIMEOUT};
use tokio_util::sync::CancellationToken;

use super::parameters::Parameters;

/// With less memory even plain queries could fail.
const MIN_MEMORY_BYTES: usize = 64 << 20;

/// The limits of one engine.
#[derive(Debug, Clone)]
pub struct QueryLimits {
    /// Bytes that all queries together may hold while they run: hash tables, rows that are sorted.
    pub memory: usize,
    /// Queries that run at a time.
    pub running: usize,
    /// Queries that may wait for a running one to end.
    pub waiting: usize,
    /// How long an answer may take, waiting included; None: as long as it takes.
    pub timeout: Option<Duration>,
    /// The most rows of an answer.
    pub rows: u64,
    /// The most bytes of an answer.
    pub bytes: u64,
    /// Whether a client may raise these limits: where it runs the query itself, without a collector.
    pub can_be_raised: bool,
}

/// Settings of one query: its scope, parameters and the limits that the client chose.
#[derive(Debug, Clone, Default)]
pub struct QuerySettings {
    /// The process whose rows the query sees; None for all processes.
    pub pid: Option<i32>,
    /// Values of the parameters ($name) of the query.
    pub parameters: Parameters,
    /// How long the answer may take.
    pub timeout: Option<Duration>,
    /// The most rows of the answer.
    pub rows: Option<u64>,
    /// The most bytes of the answer.
    pub bytes: Option<u64>,
    /// The most bytes that the query may hold while it runs.
    pub memory: Option<usize>,
    /// Cancelled when the client loses the permission to query.
    pub revoked: CancellationToken,
}

impl Default for QueryLimits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            memory: 512 << 20,
            running: cores.max(4),
            waiting: 32,
            timeout: Some(Duration::from_secs(300)),
            rows: 100_000_000,
            bytes: 8 << 30,
            can_be_raised: false,
        }
    }
}

impl QueryLimits {
    /// The limits of a collector: a quarter of `memory` is for queries (at least 64 MiB), and environment variables may change
    /// each limit.
    ///
    /// # Errors
    /// A variable has a value that is no limit.
    pub fn of_collector(memory: usize) -> Result<Self> {
        let default = Self { memory: (memory / 4).max(MIN_MEMORY_BYTES), ..Self::default() };
        Ok(Self {
            memory: variable(PROBE_QUERY_MEMORY, "bytes, or like 512M or 2G", probe_common::sizes::parse_size)?
                .map_or(default.memory, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            running: variable(PROBE_QUERIES, "a number", number)?.map_or(default.running, |running| running as usize),
            timeout: variable(PROBE_QUERY_TIMEOUT, "like 30s or 10m; off for none", timeout)?
                .unwrap_or(default.timeout),
            rows: variable(PROBE_QUERY_ROWS, "a number", number)?.unwrap_or(default.rows),
            bytes: variable(PROBE_QUERY_BYTES, "bytes, or like 512M or 2G", probe_common::sizes::parse_size)?
                .unwrap_or(default.bytes),
            ..default
        })
    }

    /// The limits of a command that runs queries itself and may raise them.
    #[must_use]
    pub fn of_command(self) -> Self {
        Self { can_be_raised: true, ..self }
    }

    /// The limit that a client asked for, lowered to what is allowed; None is without a limit.
    pub(super) fn lower<T: Ord>(&self, asked: Option<T>, allowed: Option<T>) -> Option<T> {
        match (asked, allowed) {
            (Some(asked), Some(allowed)) if !self.can_be_raised => Some(asked.min(allowed)),
            (asked, allowed) => asked.or(allowed),
        }
    }

    /// How to raise a limit that a client sets by `option` and a collector by `variable`. `asked` is the limit that applied.
    fn more<T: PartialOrd>(&self, asked: T, allowed: T, option: &str, variable: &str) -> String {
        match () {
            () if self.can_be_raised => format!("allow more with {option}"),
            () if asked < allowed => format!("allow more with {option}, which was lower than the collector's"),
            () => format!("{variable} of the collector is what any query may have ({option} can only lower it)"),
        }
    }

    pub(super) fn too_much_memory(&self, memory: usize) -> Error {
        let error = Error::limit(match memory < self.memory {
            true => format!("the query needs more memory than the {} that it was given", size(memory as u64)),
            false => format!(
                "the query needs more memory than the {} that all queries together may take",
                size(self.memory as u64)
            ),
        });
        error.hint(format!(
            "let it look at less: WHERE step > …, fewer columns, an aggregate in place of single rows; or set a larger limit where the query runs (in the collector; in this command, when it reads a run's directory): {PROBE_QUERY_MEMORY}"
        ))
    }

    pub(super) fn too_late(&self, timeout: Duration) -> Error {
        let more = self.more(timeout, self.timeout.unwrap_or(Duration::MAX), "--timeout", PROBE_QUERY_TIMEOUT);
        Error::limit(format!("the query did not finish within {}", humantime::format_duration(timeout)))
            .hint(format!("ask for fewer rows or steps; {more}"))
    }

    pub(super) fn too_many_rows(&self, rows: u64) -> Error {
        let more = self.more(rows, self.rows, "--max-rows", PROBE_QUERY_ROWS);
        Error::limit(format!("the answer has more than {rows} rows"))
            .hint(format!("ask for fewer: LIMIT, WHERE step > …, an aggregate; {more}"))
    }

    pub(super) fn too_many_bytes(&self, bytes: u64) -> Error {
        let more = self.more(bytes, self.bytes, "--max-bytes", PROBE_QUERY_BYTES);
        Error::limit(format!("the answer is larger than {}", size(bytes)))
            .hint(format!("ask for fewer rows or columns; {more}"))
    }

    /// The error of an answer whose client reads nothing.
    pub(super) fn nobody_takes(&self) -> Error {
        Error::limit("the client read nothing of the answer for too long, while too many other answers waited")
            .hint("ask again, and write the answer to a file: probe query --output FILE")
    }

    pub(super) fn too_many_queries(&self) -> Error {
        Error::limit(format!(
            "{} queries are running here and {} wait, and no more are accepted",
            self.running, self.waiting
        ))
        .hint(format!("ask again when some have ended; or start the collector with a larger {PROBE_QUERIES}"))
    }
}

fn variable<T>(name: &str, expected: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
    match std::env::var(name) {
        Ok(text) if !text.trim().is_empty() => parse(text.trim())
            .map(Some)
            .ok_or_else(|| Error::usage(format!("{name}={text} is not valid")).hint(expected.to_owned())),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(Error::usage(name).because(error)),
    }
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number > 0)
}

fn timeout(text: &str) -> Option<Option<Duration>> {
    match text {
        "off" => Some(None),
        text => humantime::parse_duration(text).ok().filter(|timeout| !timeout.is_zero()).map(Some),
    }
}

/// Bytes, for people.
fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 10 << 30 => format!("{} GiB", bytes >> 30),
        bytes if bytes >= 10 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 10 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    }
}
