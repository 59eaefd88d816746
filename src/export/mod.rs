//! A timeline of a run: the chosen processes and steps, their rows in order of time, and how each is drawn. `probe-export`
//! writes it as a file.

mod choice;
mod cursor;
mod drawing;
mod pending_flows;
mod plan;
mod processes;
mod row;
mod sources;

pub(crate) use self::choice::{ExportChoice, ExportRequest};
pub(crate) use self::plan::ExportPlan;
