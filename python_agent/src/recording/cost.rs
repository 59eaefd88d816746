//! What an event costs on this machine: measured once at install, in a few milliseconds; rare events as they happen.
//!
//! A tight loop shows what an event costs whose code and data are at hand (15 ns), not what it costs between two layers
//! of a network, which have used the caches meanwhile. So what is measured here are single events, each after a walk
//! through as much memory as the nearer caches hold, and after operations of torch.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

use super::clock::ticks;
use super::record_function::{self, peek};
use super::ring::Ring;
use super::{device, operators};
use probe_trace::record::{Kind, Record, RecordTable};

/// Walked through between two measured events.
const WALK: usize = 1 << 20;
const EVENTS: usize = 40;
/// Operations with and without the callback, in turn.
const OPERATIONS: usize = 60;

/// In ticks, as they are at install: a module call's begin or end; a node's both.
static EVENT: AtomicU64 = AtomicU64::new(0);
static NODE: AtomicU64 = AtomicU64::new(0);
/// Ticks that hooks of collectives and of the DataLoader have taken.
static RARE: AtomicU64 = AtomicU64::new(0);

/// Ticks by kind of event.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Costs {
    /// Begin or end of a module call.
    pub(crate) event: u64,
    /// Begin and end of an autograd node.
    pub(crate) node: u64,
    /// Event on a device's stream.
    pub(crate) mark: u64,
    /// Hooks of collectives and of the DataLoader so far, in all.
    pub(crate) rare: u64,
}

pub(crate) fn costs() -> Costs {
    let [event, node, rare] = [&EVENT, &NODE, &RARE].map(|ticks| ticks.load(Ordering::Relaxed));
    Costs { event, node, mark: device::cost(), rare }
}

/// A hook that happens a few times a step has taken this long.
pub(super) fn spent(began: u64) {
    RARE.fetch_add(ticks().saturating_sub(began), Ordering::Relaxed);
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
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
            if ring.begin(RecordTable::TorchTrace, Record::new(Kind::Enter, peek(), ticks(), 0, 0)) {
                ring.end(Record::new(Kind::Exit, peek(), ticks(), 0, 0));
            }
            with.push(ticks().saturating_sub(began));
        } else {
            without.push(ticks().saturating_sub(began));
        }
    }
    // The counter is read once between them that the slot does not read.
    Ok(median(&mut with).saturating_sub(median(&mut without)) / 2)
}

/// Measures what events cost. `operate()` runs one operation of torch; None where no callback watches nodes.
#[pyfunction]
fn measure_costs(operate: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let mut memory = vec![1_u8; WALK];
    let event = measure_event(&mut memory, operate)?;
    EVENT.store(event, Ordering::Relaxed);
    if let Some(operate) = operate {
        let mut way = |needs_inputs| {
            let (mut with, mut without) = record_function::with_callback_in_turn(OPERATIONS, needs_inputs, || {
                // The first one after a change of callbacks makes torch's list of them.
                operate.call0()?;
                walk(&mut memory);
                let began = ticks();
                operate.call0()?;
                Ok(ticks().saturating_sub(began))
            })?;
            PyResult::Ok(median(&mut with).saturating_sub(median(&mut without)))
        };
        NODE.store(way(false)? + 2 * event, Ordering::Relaxed);
        // For an operator that is not recorded, the callback costs torch's call of it and one comparison of the name.
        operators::set_way(way(true)? + event);
    }
    Ok(())
}

/// A start that does nothing: what is measured is torch's way to it.
pub(super) unsafe extern "C" fn pass_start(context: *mut *mut c_void, _range: *const u8) -> *mut *mut c_void {
    // SAFETY: the place for the returned unique_ptr.
    unsafe { *context = std::ptr::null_mut() };
    context
}

/// And an end.
pub(super) unsafe extern "C" fn pass_end(_range: *const u8, _context: *mut c_void) {}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(measure_costs, module)?)
}
