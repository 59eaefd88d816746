//! Events that training's threads record, and the marks that name them in records.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::prelude::*;

use super::super::clock::ticks;
use super::super::policy::{self, Layer};
use super::cost::EventCost;
use super::driver::{self, CudaDriver};
use super::pool::{self, DEVICES, FAILED};

/// The slot of the event that a mark names; None where it names no event.
fn slot_of(mark: u16) -> Option<u16> {
    (mark != FAILED).then(|| mark.checked_sub(1)).flatten()
}

/// Whether a mark names an event.
pub(crate) fn is_event(mark: u16) -> bool {
    slot_of(mark).is_some()
}

/// Stride of the events whose recording is timed.
const TIMED: u64 = 64;

/// Whether the layer is installed.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// Whether the layer is installed, CUDA is in use, and there are events.
static ON: AtomicBool = AtomicBool::new(false);
/// Events requested so far.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// What recording an event costs.
static COST: EventCost = EventCost::new();

/// Records an event on the current stream and returns its mark. 0 where there is no stream to record on, [`FAILED`] where
/// recording failed.
#[inline(always)]
pub(crate) fn mark() -> u16 {
    if ON.load(Ordering::Relaxed) { mark_now() } else { 0 }
}

/// Records an event on the current stream if `wanted`, and returns its mark; else 0.
#[inline(always)]
pub(crate) fn mark_if(wanted: bool) -> u16 {
    if wanted { mark() } else { 0 }
}

#[inline(never)]
fn mark_now() -> u16 {
    let (Some(driver), true) = (driver::loaded(), policy::is_on(Layer::DeviceTime)) else { return 0 };
    let began = COUNT.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED).then(ticks);
    let mark = record(driver);
    if let (Some(began), Some(_)) = (began, slot_of(mark)) {
        COST.add_sample(ticks().saturating_sub(began));
    }
    mark
}

fn record(driver: &CudaDriver) -> u16 {
    // A thread that uses no device has no context.
    let Some(device) = driver.current_device().filter(|device| *device < DEVICES) else { return 0 };
    let Some(stream) = driver.current_stream(device) else { return FAILED };
    if driver.may_be_capturing(stream) {
        return FAILED;
    }
    let Some(slot) = pool::take_event(device) else { return FAILED };
    if driver.record(pool::event(slot), stream) {
        slot + 1
    } else {
        pool::give_back(slot);
        FAILED
    }
}

/// Forgets in a forked child the events of the parent. Such a child can't use CUDA if its parent has.
pub(crate) fn begin_anew() {
    ON.store(false, Ordering::Relaxed);
    COUNT.store(0, Ordering::Relaxed);
}

/// Runs `work`, which queries events.
pub(crate) fn relaxed<T>(work: impl FnOnce() -> T) -> T {
    match driver::loaded().filter(|_| COUNT.load(Ordering::Relaxed) > 0) {
        Some(driver) => driver.relaxed(work),
        None => work(),
    }
}

/// Frees the event of a mark whose record was not written.
#[cold]
pub(crate) fn take_back(mark: u16) {
    if let Some(slot) = slot_of(mark) {
        pool::give_back(slot);
    }
}

/// What recording an event costs, in ticks; 0 before the first one.
pub(crate) fn cost() -> u64 {
    COST.ticks()
}

/// Checks whether CUDA is in use by now, and makes events for the devices that need some. For the background thread.
pub(crate) fn prepare() {
    if INSTALLED.load(Ordering::Relaxed)
        && let Some(driver) = driver::find()
        && pool::fill(driver)
    {
        ON.store(true, Ordering::Relaxed);
    }
}

/// Installs the layer, or removes it.
#[pyfunction]
fn use_device_events(on: bool) {
    INSTALLED.store(on, Ordering::Relaxed);
    if !on {
        ON.store(false, Ordering::Relaxed);
    }
}

/// Adds this file's functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(use_device_events, module)?)
}
