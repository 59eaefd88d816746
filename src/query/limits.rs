//! What a query may take of the machine, and how to have more of it.

use std::time::Duration;

use probe_proto::env::{PROBE_QUERIES, PROBE_QUERY_BYTES, PROBE_QUERY_MEMORY, PROBE_QUERY_ROWS, PROBE_QUERY_TIMEOUT};

use crate::error::{Error, Result};

/// Below this, plain questions could not be asked.
const LEAST_MEMORY: usize = 64 << 20;

/// Of one engine.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes that all queries together may hold on to while they run: hash tables, what is sorted.
    pub memory: usize,
    /// Queries that run at a time.
    pub running: usize,
    /// Queries that wait for one of those to end.
    pub waiting: usize,
    /// How long an answer may take, waiting included, unless the client says; None: as long as it takes.
    pub timeout: Option<Duration>,
    /// Rows of an answer, unless the client says.
    pub rows: u64,
    /// Bytes of an answer, unless the client says.
    pub bytes: u64,
}

/// What a client asks for, beside the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// Only this process's rows.
    pub pid: Option<i32>,
    /// How long the answer may take.
    pub timeout: Option<Duration>,
    /// How many rows it may have.
    pub rows: Option<u64>,
    /// How large it may be.
    pub bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            memory: 512 << 20,
            running: cores.max(4),
            waiting: 32,
            timeout: Some(Duration::from_secs(300)),
            rows: 100_000_000,
            bytes: 8 << 30,
        }
    }
}

impl Limits {
    /// Those of a collector: a quarter of `memory` is for queries (at least 64 MiB), and the environment may say
    /// otherwise about all.
    ///
    /// # Errors
    /// A variable says what is none.
    pub fn of_collector(memory: usize) -> Result<Self> {
        let default = Self { memory: (memory / 4).max(LEAST_MEMORY), ..Self::default() };
        Ok(Self {
            memory: variable(PROBE_QUERY_MEMORY, "bytes, or like 512M or 2G", crate::collector::size)?
                .map_or(default.memory, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            running: variable(PROBE_QUERIES, "a number", number)?.map_or(default.running, |running| running as usize),
            timeout: variable(PROBE_QUERY_TIMEOUT, "like 30s or 10m; off for none", timeout)?
                .unwrap_or(default.timeout),
            rows: variable(PROBE_QUERY_ROWS, "a number", number)?.unwrap_or(default.rows),
            bytes: variable(PROBE_QUERY_BYTES, "bytes, or like 512M or 2G", crate::collector::size)?
                .unwrap_or(default.bytes),
            ..default
        })
    }

    pub(super) fn too_much_memory(&self) -> Error {
        Error::limit(format!(
            "the query needs more memory than the {} that all queries together may take",
            size(self.memory as u64)
        ))
        .hint(format!(
            "let it look at less: WHERE step > …, fewer columns, an aggregate in place of single rows; or give whoever \
             answers (the collector; this command, where it reads a run's directory) a larger {PROBE_QUERY_MEMORY}"
        ))
    }

    /// `asked`: the client said how long it may take.
    pub(super) fn too_late(&self, timeout: Duration, asked: bool) -> Error {
        let error = Error::limit(format!("no whole answer within {}", humantime::format_duration(timeout)));
        let hint = "ask for fewer rows or steps, or give it longer with --timeout";
        match asked {
            true => error.hint(hint),
            false => error.hint(format!("{hint}, or by {PROBE_QUERY_TIMEOUT} of the collector")),
        }
    }

    pub(super) fn too_many_rows(&self, rows: u64) -> Error {
        Error::limit(format!("the answer has more than {rows} rows")).hint(format!(
            "ask for fewer: LIMIT, WHERE step > …, an aggregate; or allow more with --max-rows, or for all queries by \
             {PROBE_QUERY_ROWS} of the collector"
        ))
    }

    pub(super) fn too_many_bytes(&self, bytes: u64) -> Error {
        Error::limit(format!("the answer is larger than {}", size(bytes))).hint(format!(
            "ask for fewer rows or columns; or allow more with --max-bytes, or for all queries by \
                 {PROBE_QUERY_BYTES} of the collector"
        ))
    }

    pub(super) fn too_many_queries(&self) -> Error {
        Error::limit(format!(
            "{} queries are running here and {} wait, and more are not taken",
            self.running, self.waiting
        ))
        .hint(format!("ask again when some have ended; or start the collector with a larger {PROBE_QUERIES}"))
    }
}

fn variable<T>(name: &str, expected: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
    match std::env::var(name) {
        Ok(text) if !text.trim().is_empty() => parse(text.trim()).map(Some).ok_or_else(|| {
            Error::usage(format!("{name} is '{text}', which is none that can be")).hint(expected.to_owned())
        }),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(Error::usage(format!("{name}: {error}"))),
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
