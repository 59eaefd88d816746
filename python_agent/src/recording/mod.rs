//! What runs on training's threads: slots, callbacks, rings.
//!
//! Calls from Python and C++ callbacks become [`record::RingRecord`]s in the ring of the thread they happen on
//! ([`thread`], [`ring`]); [`probe_trace`] makes rows of them. Most `unsafe` of the agent is in here.
//!
//! From the bottom up: the clock, rings and the state of a thread ([`clock`], [`ring`], [`thread`]); names and costs
//! ([`module_names`], [`cost`]); what is recorded of spans, operators and memory; the ends of steps ([`boundary`]); module calls
//! ([`forward`], [`slot`]) and the other hooks; torch's callbacks, which call hooks ([`record_function`]). On top are the modules
//! that use all hooks: [`symbolizer`], [`drain`], [`fork`] and [`switches`].

use probe_proto::config::Layers;
use pyo3::prelude::*;

mod allocator;
mod analyser;
pub mod analyser_checkpoint;
mod attributes;
mod autograd_passes;
mod backward;
mod batch;
mod boundary;
mod calibration;
mod call_mode;
mod called_modules;
mod capture;
mod checkpoints;
pub(crate) mod clock;
mod collectives;
mod completion;
pub mod config;
mod cost;
mod cost_measurement;
pub(crate) mod data;
mod data_tasks;
mod debug;
mod device;
mod doubling_count;
mod drain;
pub mod exceptions;
mod fast_call;
mod fetch_times;
mod first_use;
mod fork;
mod forward;
mod forward_hooks;
mod hook_table;
mod interned;
mod libtorch;
mod loader_method;
mod loss;
mod marked_step;
pub(crate) mod memory;
mod module_memory;
mod module_names;
mod no_steps;
mod open_intervals;
mod open_spans;
mod operator_counts;
pub(crate) mod operators;
mod optimizer;
mod overhead;
mod padding;
mod pauses;
mod pending_call;
pub mod policy;
mod primary_optimizer;
mod process_flag;
mod processor;
mod profiled_ranges;
mod program_errors;
mod ranges_in_passes;
mod record_function;
mod ring;
mod sampled_steps;
mod scalar;
mod shape;
mod shared_memory;
mod shim;
mod slot;
pub(crate) mod spans;
mod standstill;
mod switches;
mod symbolizer;
pub mod tables;
mod test_mode;
mod thread;
mod thread_mode;
mod torch_callbacks;
mod type_slot;
mod untraced;
pub(crate) mod usage;
mod user_line;

pub use boundary::unit;
pub use drain::{drain, flush_open};
pub(crate) use fork::begin_in_child;
pub use overhead::{cost, set_buffer_bytes};
pub use probe_trace::record;
pub(crate) use process_flag::may_begin;
pub use switches::{layers_now, switch};

/// Adds this part's functions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("LAYERS", Layers::NAMES.to_vec())?;
    backward::register(module)?;
    boundary::register(module)?;
    calibration::register(module)?;
    call_mode::register(module)?;
    capture::register(module)?;
    checkpoints::register(module)?;
    collectives::register(module)?;
    completion::register(module)?;
    cost_measurement::register(module)?;
    batch::register(module)?;
    padding::register(module)?;
    data::register(module)?;
    data_tasks::register(module)?;
    debug::register(module)?;
    device::register(module)?;
    exceptions::register(module)?;
    fast_call::register(module)?;
    fetch_times::register(module)?;
    first_use::register(module)?;
    fork::register(module)?;
    forward::register(module)?;
    forward_hooks::register(module)?;
    loader_method::register(module)?;
    marked_step::register(module)?;
    memory::register(module)?;
    module_memory::register(module)?;
    module_names::register(module)?;
    operators::register(module)?;
    optimizer::register(module)?;
    pauses::register(module)?;
    profiled_ranges::register(module)?;
    record_function::register(module)?;
    shape::register(module)?;
    slot::register(module)?;
    type_slot::register(module)?;
    untraced::register(module)?;
    spans::register(module)?;
    standstill::register(module)?;
    hook_table::register(module)?;
    tables::register(module)?;
    test_mode::register(module)?;
    thread_mode::register(module)?;
    switches::register(module)?;
    crate::sampling::environment::register(module)
}
