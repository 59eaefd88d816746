//! What runs on training's threads: slots, callbacks, rings.
//!
//! Python calls and C++ callbacks become [`record::Record`]s in the ring of the thread they happen on
//! ([`thread`], [`ring`]); [`probe_trace`] makes rows of them. All `unsafe` of the agent is in here.

use std::sync::atomic::{AtomicBool, Ordering};

use probe_proto::config::Layers;
use pyo3::prelude::*;

use crate::shared::{self, ATTACHED, ENABLED, MAX_PROBLEM_LENGTH};
use crate::words::Words;

mod allocator;
mod analyser;
mod autograd_passes;
mod backward;
mod boundary;
mod call_mode;
mod capture;
mod checkpoints;
pub(crate) mod clock;
mod collectives;
mod completion;
mod cost;
mod cost_measurement;
pub(crate) mod data;
mod debug;
#[path = "device/marks.rs"]
mod device;
mod drain;
pub mod exceptions;
mod fast_call;
mod first_use;
mod fork;
mod forward;
mod forward_hooks;
mod hook_table;
mod interned;
pub mod keep;
mod libtorch;
mod marked_step;
pub(crate) mod memory;
mod module_memory;
mod names;
mod open_spans;
pub(crate) mod operators;
mod optimizer;
mod overhead;
mod pauses;
mod pending_call;
pub mod policy;
mod process_flag;
mod processor;
mod profiled_ranges;
mod program_errors;
mod record_function;
mod ring;
mod shape;
mod shared_memory;
mod shim;
mod slot;
pub(crate) mod spans;
mod standstill;
mod symbolizer;
pub mod tables;
mod test_mode;
mod thin;
mod thread;
mod torch_callbacks;
mod turns;
mod type_slot;
pub(crate) mod usage;

pub use boundary::unit;
pub use drain::{drain, flush_open};
pub(crate) use fork::begin_in_child;
pub use overhead::{cost, set_budget, set_buffer_bytes};
pub use probe_trace::record;
use probe_trace::record::{Kind, Record};
pub(crate) use process_flag::{begun, may_begin};

/// Whether recording has ever been on.
static EVER_ON: AtomicBool = AtomicBool::new(false);

/// Switches recording on or off. Off, everything of ours passes straight through. Stays off in a forked child.
pub fn switch(on: bool) {
    if on && process_flag::is_child() {
        return;
    }
    if on && !ENABLED.load(Ordering::Relaxed) {
        fork::watch();
        if EVER_ON.swap(true, Ordering::Relaxed) {
            // Before anything else is recorded: the time that it was off belongs to no step.
            thread::with(|state| state.instant(Record::new(Kind::Resume, 0, clock::ticks(), 0, 0)));
        }
    }
    ENABLED.store(on, Ordering::Relaxed);
}

/// See [`switch`].
#[pyfunction]
fn enable(on: bool) {
    switch(on);
}

/// What is recorded until the step under way ends belongs to no row of a step: recording has begun in the middle of it.
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

/// Chooses the clock and begins to compare it with the system's. Before anything is recorded; again does nothing.
#[pyfunction]
fn prepare() {
    drain::prepare();
}

/// Says which mechanism runs a layer.
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
fn set_problem(problem: Words<MAX_PROBLEM_LENGTH>) {
    *shared::lock(&shared::PROBLEM) = problem.0;
}

/// The newest thing that went wrong; empty when nothing did.
#[pyfunction]
fn problem() -> String {
    shared::lock(&shared::PROBLEM).clone()
}

/// Adds this part's functions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("LAYERS", Layers::NAMES.to_vec())?;
    backward::register(module)?;
    boundary::register(module)?;
    call_mode::register(module)?;
    capture::register(module)?;
    checkpoints::register(module)?;
    collectives::register(module)?;
    completion::register(module)?;
    cost_measurement::register(module)?;
    data::register(module)?;
    debug::register(module)?;
    device::register(module)?;
    exceptions::register(module)?;
    fast_call::register(module)?;
    first_use::register(module)?;
    fork::register(module)?;
    forward::register(module)?;
    forward_hooks::register(module)?;
    marked_step::register(module)?;
    memory::register(module)?;
    module_memory::register(module)?;
    names::register(module)?;
    operators::register(module)?;
    optimizer::register(module)?;
    pauses::register(module)?;
    profiled_ranges::register(module)?;
    record_function::register(module)?;
    shape::register(module)?;
    slot::register(module)?;
    type_slot::register(module)?;
    spans::register(module)?;
    standstill::register(module)?;
    hook_table::register(module)?;
    tables::register(module)?;
    test_mode::register(module)?;
    crate::sampling::environment::register(module)?;
    module.add_function(wrap_pyfunction!(enable, module)?)?;
    module.add_function(wrap_pyfunction!(is_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(skip_step, module)?)?;
    module.add_function(wrap_pyfunction!(prepare, module)?)?;
    module.add_function(wrap_pyfunction!(set_layer, module)?)?;
    module.add_function(wrap_pyfunction!(layers, module)?)?;
    module.add_function(wrap_pyfunction!(set_problem, module)?)?;
    module.add_function(wrap_pyfunction!(problem, module)?)
}
