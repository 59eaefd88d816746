//! `probe_agent._native`: the native half of the agent.
//!
//! [`recording`] is what runs on training's threads: slots, callbacks, rings. [`probe_trace`] turns what they recorded
//! into rows of the tables, and [`uplink`] sends the rows; both run on one background thread that never takes the GIL.
//! [`frame_locals`] reads what a snippet may name, [`words`] takes texts from Python and bounds them, [`seconds`] time spans. [`sampling`] asks the
//! operating system, on that thread too. [`shared`] is the little state that all of them, and the Python half, look at,
//! [`address`] is where the collector is, and [`terminal`] writes lines for the person who runs the program.

use pyo3::prelude::*;

pub mod address;
mod frame_locals;
pub mod recording;
pub mod sampling;
pub mod seconds;
pub mod shared;
mod terminal;
pub mod uplink;
pub mod words;

/// The extension module. Each part registers its own functions.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    frame_locals::register(module)?;
    recording::register(module)?;
    uplink::register(module)?;
    Ok(())
}
