//! Captures: torch.profiler is on for some steps in the run's processes, and what it saw becomes rows of the run.
//!
//! [`plan`] says what is asked for and of whom, [`agents`] asks them by snippets, [`traces`] reads what they write, and
//! [`capture`] does one after the other.

mod agents;
mod capture;
mod plan;
mod traces;

pub(crate) use capture::Captures;
