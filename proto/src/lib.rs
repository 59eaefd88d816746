//! The contract of `probe`: what agents and the collector say to each other, and the tables.
//!
//! Both sides depend on this crate and on nothing else of each other, so it stays small: generated messages ([`v1`]),
//! the declarations of all tables ([`tables`]), rows to packed columns ([`encode`]) and back, checked ([`decode`]), and
//! what both sides must agree on beside them ([`env`], [`config`], [`credentials`]), and how both connect over TCP ([`tcp`]).
//!
//! The crate knows messages, columns and names. It stores no rows, runs no queries and calls no Python.

pub mod agent_connection;
pub mod bus_factor;
pub mod column_builder;
pub mod config;
pub mod credentials;
pub mod decode;
pub mod encode;
pub mod env;
pub mod loopback;
mod snippet_words;
pub mod stage;
pub mod step_part;
pub mod table;
pub mod tables;
pub mod tcp;

/// Generated from `proto/probe/v1/*.proto`.
#[allow(unreachable_pub, clippy::all, missing_docs)]
pub mod v1 {
    tonic::include_proto!("probe.v1");
}

/// The version of the stream between agent and collector. A collector refuses a newer one.
pub const PROTOCOL: u32 = 1;

/// The version of this build: agent, collector and command line are released together.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Words that mean something else in `probe WORD`, now or soon, so that no run may have them as its name. The command refuses them. The
/// agent names a run after its script, and adds something to such a name.
pub const RESERVED_NAMES: &[&str] = &[
    "attach",
    "bench",
    "capture",
    "compare",
    "completions",
    "config",
    "console",
    "crash",
    "detach",
    "diagnose",
    "doctor",
    "eval",
    "export",
    "flamegraph",
    "hang",
    "help",
    "import",
    "list",
    "profile",
    "query",
    "run",
    "runs",
    "serve",
    "stack",
    "tables",
    "token",
    "unix",
];

/// Times of agents are whole multiples of one 2^27th of a second (7.5 ns, less than taking a record costs): their sums are
/// exact in any order up to two years, and they take less on disk than times to the last bit, which is noise.
pub const TIMES_PER_SECOND: u64 = 1 << 27;

/// Largest frame on the stream (bytes); a batch is cut well below it.
pub const MAX_FRAME: usize = 16 << 20;

/// Most rows that a batch may claim.
pub const MAX_ROWS: usize = 1 << 20;

/// Longest string (bytes); a longer one is cut, so that any fits in a frame.
pub const MAX_STRING: usize = 1 << 20;

/// Most entries of a connection's string table; their bytes are limited by [`MAX_STRING_BYTES`].
pub const MAX_STRINGS: usize = 1 << 20;
/// Most bytes of all strings of a connection.
pub const MAX_STRING_BYTES: usize = 64 << 20;
