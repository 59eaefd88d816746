//! The account of processes that ended badly: told by queries alone, so that it is the same of a live run, of one that
//! has ended, and of a directory.

mod account;
mod kept;
mod page;
mod queries;
#[cfg(test)]
mod tests;

pub(crate) use account::{Account, Crash};
pub(crate) use page::page;
pub(crate) use queries::ask;
