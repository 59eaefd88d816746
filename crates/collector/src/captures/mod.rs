//! Captures: torch.profiler is on for some steps in the run's processes, and what it saw becomes rows of the run.
//!
//! [`plan`] says what is captured in which processes, [`agents`] asks them by snippets, [`traces`] reads what they write, and
//! [`capture`] does all of that in turn. [`when_slow`] asks for a capture when steps get slower.

mod agents;
mod capture;
mod plan;
mod traces;
mod when_slow;

pub(crate) use capture::CaptureRunner;
pub(crate) use when_slow::SlowStepCaptures;
