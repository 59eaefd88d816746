//! What was written, read back.
#![allow(clippy::unwrap_used)]

mod chrome;
mod drawn;
mod nesting;
mod perfetto;
