//! Measures what an event costs, once at install, in a few milliseconds.
//!
//! A tight loop measures an event whose code and data are in the caches (15 ns), not one between two layers of a network, which
//! have used the caches meanwhile. So single events are measured here, each after a walk through as much memory as the nearer
//! caches hold, and after operations of torch.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;

use super::clock::ticks;
use super::cost::{EVENT, NODE};
use super::libtorch::peek;
use super::ring::Ring;
use super::{operators, torch_callbacks};
use probe_trace::record::{RecordKind, RecordTable, RingRecord};

/// Bytes of memory that are walked through between two measured events.
const WALK: usize = 1 << 20;
const EVENTS: usize = 40;
/// Operations that are measured with and without the callback, in turn.
const OPERATIONS: usize = 60;

/// The lower quartile of durations: other processes can only make a duration longer, and may do so to half of them.
fn undisturbed(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 4).copied().unwrap_or(0)
}

/// Uses the caches for something else.
fn walk(memory: &mut [u8]) {
    for line in memory.chunks_mut(64) {
        line[0] = line[0].wrapping_add(1);
    }
    std::hint::black_box(memory);
}

/// A module call's begin and end in ticks: what the slot does besides calling on.
fn measure_event(memory: &mut [u8], operate: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let Some(ring) = Ring::unlisted() else { return Ok(0) };
    let (mut with, mut without) = (Vec::with_capacity(EVENTS), Vec::with_capacity(EVENTS));
    for number in 0..EVENTS {
        walk(memory);
        operate.map(Bound::call0).transpose()?;
        let began = ticks();
        if number % 2 == 0 {
            if ring.begin(RecordTable::TorchTrace, RingRecord::new(RecordKind::Enter, peek(), ticks(), 0, 0)) {
                ring.end(RingRecord::new(RecordKind::Exit, peek(), ticks(), 0, 0));
            }
            with.push(ticks().saturating_sub(began));
        } else {
            without.push(ticks().saturating_sub(began));
        }
    }
    // Between begin and end the counter is read once more than in the slot.
    Ok(undisturbed(&mut with).saturating_sub(undisturbed(&mut without)) / 2)
}

/// Measures what events cost. `operate()` runs one operation of torch; None where no callback watches nodes.
#[pyfunction]
fn measure_costs(operate: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let mut memory = vec![1_u8; WALK];
    let event = measure_event(&mut memory, operate)?;
    EVENT.store(event, Ordering::Relaxed);
    if let Some(operate) = operate {
        let mut way = |needs_inputs| {
            let (mut with, mut without) = torch_callbacks::with_callback_in_turn(OPERATIONS, needs_inputs, || {
                // The first operation after a change of callbacks makes torch rebuild its list of them.
                operate.call0()?;
                walk(&mut memory);
                let began = ticks();
                operate.call0()?;
                Ok(ticks().saturating_sub(began))
            })?;
            PyResult::Ok(undisturbed(&mut with).saturating_sub(undisturbed(&mut without)))
        };
        NODE.store(way(false)? + 2 * event, Ordering::Relaxed);
        // What the callback itself does is measured where it is done.
        operators::set_way(way(true)?);
    }
    Ok(())
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(measure_costs, module)?)
}
