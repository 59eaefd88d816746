//! The account of processes that ended badly: made by queries alone, so that it is the same for a live run, for one that has
//! ended, and for a directory.

mod account;
mod amounts;
mod kept;
mod page;
mod queries;
#[cfg(test)]
mod tests;

pub(crate) use account::{CrashAccount, CrashedProcess};
pub(crate) use page::page;
pub(crate) use queries::ask;
