//! The journal: a collector records what it receives, so that its death loses nothing that it has acknowledged.
//!
//! A run directory has a `journal/` of numbered files while its collector lives: records ([`frame`]) of everything
//! that agents sent, in order ([`writer`]), on disk within a second. [`JournalCheckpoint`] is the sum of all records, rows
//! excepted; every file begins with one, so that the files before it can be removed once their rows are in Parquet files.
//! [`share`] limits the journal's part of the disk. [`replay`] reads a journal that a collector has left.

mod checkpoint;
mod files;
mod frame;
mod newest;
mod open_connection;
pub mod replay;
mod reserve;
mod share;
mod state;
mod status;
mod thread;
mod writer;

pub use checkpoint::{JournalCheckpoint, MAX_ENTRIES};
pub use files::{directory, remove};
pub use newest::{NewestRows, NumberedRow};
pub use status::StatusLog;
pub use thread::panicked;
pub use writer::{Journal, JournalStart};
