//! `probe_agent._native`: the native half of the agent.
//!
//! [`recording`] runs on training's threads: slots, callbacks, rings. [`probe_trace`] makes rows of what they recorded, and
//! [`uplink`] sends the rows. Both run on one background thread that never takes the GIL; [`sampling`] reads the figures of the
//! operating system on it.
//!
//! - [`shared`] is the little state that all of them and the Python half use. [`renewable`] is for state that a forked child makes
//!   anew.
//! - [`frame_locals`] reads the variables that a snippet may name. [`python_text`] takes texts from Python and bounds them, and
//!   [`seconds`] takes time spans.
//! - [`address`] is the address of the collector, and [`detached_process`] starts a collector.
//! - [`descriptors`] keeps the agent's files and the program's apart, and [`terminal`] writes lines for the person who runs the
//!   program.
//!
//! The crate knows Python, torch and its one collector. It knows no store and no SQL, and reaches clients only through the
//! collector.

use pyo3::prelude::*;

pub mod address;
mod descriptors;
mod detached_process;
mod frame_locals;
pub mod python_text;
pub mod recording;
mod renewable;
pub mod sampling;
pub mod seconds;
pub mod shared;
mod terminal;
pub mod uplink;

/// The extension module. Each part registers its own functions.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    detached_process::register(module)?;
    descriptors::register(module)?;
    frame_locals::register(module)?;
    recording::register(module)?;
    uplink::register(module)?;
    Ok(())
}
