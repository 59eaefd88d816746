//! Device memory at modules: what torch's caching allocator reports when a call begins and when it ends, in one of many steps,
//! because the query is expensive (it takes the allocator's lock and makes a dictionary of a hundred numbers).
//!
//! The device is the calling thread's current one. The time of a query is part of the caller's time, as with all that is
//! recorded of a call.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use super::allocator;
use super::clock::ticks;
use super::policy::{Layer, is_on};
use super::program_errors;
use super::sampled_steps::{SampledSteps, THINNER};
use super::thread::ThreadState;
use probe_trace::payload::{AT_END, PEAK};
use probe_trace::record::{RecordKind, RingRecord};

/// The steps in which memory is queried, as [`SampledSteps::new`] takes it: the first step is among them, because memory most
/// often runs out there.
const REMAINDER: u32 = 0;

/// Torch's functions and state that a query needs.
#[derive(Debug)]
struct TorchMemoryFunctions {
    /// `torch._C._cuda_memoryStats`.
    statistics: Py<PyAny>,
    /// `torch._C._cuda_getDevice`.
    device: Py<PyAny>,
    /// The namespace of `torch.cuda`, in which `_initialized` says whether CUDA is initialised.
    cuda: Py<PyDict>,
}

static SOURCE: PyOnceLock<TorchMemoryFunctions> = PyOnceLock::new();
static USED: AtomicBool = AtomicBool::new(false);
static QUERIES: SampledSteps = SampledSteps::new(REMAINDER, THINNER);

fn is_wanted() -> bool {
    USED.load(Ordering::Relaxed) && is_on(Layer::Memory)
}

/// Begins or ends the queries. Called at the beginning of step `step`.
pub(super) fn begin_step(step: i64, detail: bool) {
    QUERIES.begin_step(step, detail && is_wanted());
}

/// Begins anew in a forked child that becomes an agent.
pub(super) fn begin_anew() {
    QUERIES.forget();
}

/// What the queries cost a step on average, in ticks, spread over the steps without them.
pub(super) fn cost() -> u64 {
    QUERIES.cost(is_wanted())
}

/// What the allocator reports now; None in a step without queries, or where the query fails. Called with the GIL held and no
/// exception set.
#[inline(always)]
pub(super) fn query() -> Option<DeviceMemory> {
    if QUERIES.is_on() { query_now() } else { None }
}

/// What a query returned.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceMemory {
    allocated: u64,
    reserved: u64,
    /// Device and peak, as in the record.
    payload: u64,
}

impl DeviceMemory {
    /// From the first values of a device's allocator; None if one of them is missing.
    fn of(device: u8, values: [u64; allocator::OF_MODULES]) -> Option<Self> {
        let [allocated, peak, reserved] = values;
        let memory = Self { allocated, reserved, payload: u64::from(device) | peak << PEAK };
        (!values.contains(&u64::MAX)).then_some(memory)
    }

    /// Records the values for the call that began last on this thread or, with `at_end`, for the one that ends next. `at`: time
    /// in ticks.
    pub(super) fn record(self, state: &ThreadState, ticks: u64, at_end: bool) {
        let end = if at_end { AT_END } else { 0 };
        state.write_required(RingRecord::new(
            RecordKind::Allocated,
            self.payload | end,
            ticks,
            self.allocated,
            self.reserved,
        ));
    }
}

#[cold]
fn query_now() -> Option<DeviceMemory> {
    let began = ticks();
    // SAFETY: the caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    let memory = query_allocator(py).unwrap_or_else(|error| {
        USED.store(false, Ordering::Relaxed);
        QUERIES.stop();
        program_errors::swallow(py, "memory of modules", Err(error));
        None
    });
    QUERIES.spend(ticks().saturating_sub(began));
    memory
}

fn query_allocator(py: Python<'_>) -> PyResult<Option<DeviceMemory>> {
    let Some(source) = SOURCE.get(py) else { return Ok(None) };
    // The first query would initialise CUDA, which is for the program to do.
    let initialised = source.cuda.bind(py).get_item(intern!(py, "_initialized"))?;
    if !initialised.is_some_and(|flag| flag.is_truthy().unwrap_or(false)) {
        return Ok(None);
    }
    // Bound references: others that are dropped here would be released only when pyo3 itself next acquires the GIL.
    let device = source.device.bind(py).call0()?;
    let statistics = source.statistics.bind(py).call1((&device,))?;
    Ok(DeviceMemory::of(device.extract()?, allocator::values(statistics.cast::<PyDict>()?)?))
}

/// Records memory at the beginning of an optimizer's step, inside the interval that is recorded of it.
pub(super) fn optimizer_begins(state: &ThreadState) {
    if let Some(memory) = query() {
        memory.record(state, ticks(), false);
    }
}

/// Records memory at the end of an optimizer's step. `memory.py` has queried the allocator already; `values` are the first of its
/// values.
pub(super) fn note_optimizer_end(state: &ThreadState, device: u8, values: [u64; allocator::OF_MODULES]) {
    if QUERIES.is_on()
        && state.optimizers.depth() > 0
        && let Some(memory) = DeviceMemory::of(device, values)
    {
        memory.record(state, ticks(), true);
    }
}

/// Switches on the queries of memory at modules, from the next step on; with `None`s switches them off.
#[pyfunction]
#[pyo3(signature = (statistics, device, cuda))]
fn watch_module_memory(
    py: Python<'_>,
    statistics: Option<Py<PyAny>>,
    device: Option<Py<PyAny>>,
    cuda: Option<Py<PyDict>>,
) {
    let source = statistics.zip(device).zip(cuda);
    USED.store(source.is_some(), Ordering::Relaxed);
    if let Some(((statistics, device), cuda)) = source {
        // Torch's functions never change, so the first ones are kept.
        SOURCE.get_or_init(py, || TorchMemoryFunctions { statistics, device, cuda });
    }
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(watch_module_memory, module)?)
}
