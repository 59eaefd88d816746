//! Why a recorded run hung, by the Flight Recorder dumps that were imported into it: made by queries alone.

mod facts;
mod page;
mod queries;
mod verdict;

pub(crate) use page::page;
pub(crate) use queries::ask;
pub(crate) use verdict::{BlockingOperation, Verdict, Why, judge};
