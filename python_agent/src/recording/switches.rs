//! Switches recording on and off, and keeps what the Python half reports: the mechanism of each layer, and what went wrong.

use std::sync::atomic::{AtomicBool, Ordering};

use probe_proto::config::Layers;
use pyo3::prelude::*;

use super::{boundary, clock, drain, fork, policy, process_flag, thread};
use crate::python_text::PythonText;
use crate::shared::{self, ATTACHED, ENABLED, MAX_PROBLEM_LENGTH};
use probe_trace::record::{RecordKind, RingRecord};

/// Whether recording has ever been on.
static EVER_ON: AtomicBool = AtomicBool::new(false);

/// Switches recording on or off. While it is off, all hooks pass straight through. It stays off in a forked child.
pub fn switch(on: bool) {
    if on && process_flag::is_child() {
        return;
    }
    if on && !ENABLED.load(Ordering::Relaxed) {
        fork::watch();
        if EVER_ON.swap(true, Ordering::Relaxed) {
            // Before anything else is recorded: the time that it was off belongs to no step.
            thread::with(|state| state.instant(RingRecord::new(RecordKind::Resume, 0, clock::ticks(), 0, 0)));
        }
    }
    ENABLED.store(on, Ordering::Relaxed);
}

/// Switches recording on or off; see [`switch`].
#[pyfunction]
fn enable(on: bool) {
    switch(on);
}

/// Leaves the current step without a row: recording has begun in the middle of it.
#[pyfunction]
fn skip_step() {
    ATTACHED.store(true, Ordering::Relaxed);
    boundary::leave_out_step();
}

/// Whether anything is recorded in this process.
#[pyfunction]
fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Chooses the clock and begins to compare it with the system's. Called before anything is recorded; a second call does nothing.
#[pyfunction]
fn prepare() {
    drain::prepare();
}

/// Sets which mechanism runs a layer.
#[pyfunction]
fn set_layer(layer: &str, mechanism: String) {
    if let Some(layer) = Layers::NAMES.iter().find(|known| **known == layer) {
        shared::lock(&shared::LAYERS).insert(layer, mechanism);
    }
}

/// Which mechanism runs each layer now: `off` where it is switched off.
pub fn layers_now() -> std::collections::BTreeMap<&'static str, String> {
    let mut layers = shared::lock(&shared::LAYERS).clone();
    let on = policy::newest().layers;
    for (layer, mechanism) in &mut layers {
        if !on.has(layer) {
            *mechanism = "off".to_owned();
        }
    }
    layers
}

/// Which mechanism runs each layer.
#[pyfunction]
fn layers() -> std::collections::BTreeMap<&'static str, String> {
    layers_now()
}

/// Keeps what went wrong, in words. Every report has them.
#[pyfunction]
fn set_problem(problem: PythonText<MAX_PROBLEM_LENGTH>) {
    *shared::lock(&shared::PROBLEM) = problem.0;
}

/// The newest thing that went wrong; empty when nothing did.
#[pyfunction]
fn problem() -> String {
    shared::lock(&shared::PROBLEM).clone()
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(enable, module)?)?;
    module.add_function(wrap_pyfunction!(is_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(skip_step, module)?)?;
    module.add_function(wrap_pyfunction!(prepare, module)?)?;
    module.add_function(wrap_pyfunction!(set_layer, module)?)?;
    module.add_function(wrap_pyfunction!(layers, module)?)?;
    module.add_function(wrap_pyfunction!(set_problem, module)?)?;
    module.add_function(wrap_pyfunction!(problem, module)?)
}
