//! A timeline of a run: which processes and steps, their rows in order of time, and what is drawn of each. What it is written
//! as is `probe-export`'s.

mod choice;
mod cursor;
mod drawing;
mod links;
mod plan;
mod processes;
mod row;
mod sources;

pub(crate) use self::choice::{Choice, Request};
pub(crate) use self::plan::Plan;
