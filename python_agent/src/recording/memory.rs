//! Device memory: what torch's caching allocator reports at the end of a step, recorded in the ring.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::allocator::values;
use super::clock::ticks;
use super::module_memory;
use super::policy::{Layer, is_on};
use super::thread::{self, RECORD};
use crate::sampling;
use crate::shared::ENABLED;
use probe_trace::payload::MEMORY_VALUES as COUNT;
use probe_trace::record::{RecordKind, RingRecord};

/// Records what the allocator of a device reports now.
#[pyfunction]
fn memory_sample(device: u8, statistics: &Bound<'_, PyDict>) -> PyResult<()> {
    if !ENABLED.load(Ordering::Relaxed) || !is_on(Layer::Memory) {
        return Ok(());
    }
    let values: [u64; COUNT] = values(statistics)?;
    thread::with(|state| {
        if state.mode.get() != RECORD {
            return;
        }
        if let Some(first) = values.first_chunk() {
            module_memory::note_optimizer_end(state, device, *first);
        }
        for (part, pair) in values.chunks_exact(2).enumerate() {
            let payload = u64::from(device) << 8 | part as u64;
            // A row is written whole or not at all: the analysis starts a new row at part 0.
            if !state.instant(RingRecord::new(RecordKind::Memory, payload, ticks(), pair[0], pair[1])) {
                break;
            }
        }
    });
    Ok(())
}

/// Switches a measurement of the background thread on or off: `memory`, or the process.
#[pyfunction]
fn use_sampling(name: &str, on: bool) {
    let switch = if name == "memory" { &sampling::MEMORY } else { &sampling::PROCESS };
    switch.store(on, Ordering::Relaxed);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(memory_sample, module)?)?;
    module.add_function(wrap_pyfunction!(use_sampling, module)?)
}
