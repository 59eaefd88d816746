//! Device memory at modules: what torch's caching allocator says when a call begins and when it ends, in few steps of
//! many, because asking is dear (it takes the allocator's lock and makes a dictionary of a hundred numbers).
//!
//! The device that is asked is the calling thread's current one. What a look costs is the caller's time, as with all
//! that is recorded of a call.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use super::allocator;
use super::clock::ticks;
use super::policy::{Layer, is_on};
use super::program_errors;
use super::thin::Thin;
use super::thread::ThreadState;
use probe_trace::payload::{AT_END, PEAK};
use probe_trace::record::{Kind, Record};

/// In which of the steps modules are looked at: the first one among them, where memory most often runs out.
const PLACE: u32 = 0;

/// Whom to ask.
#[derive(Debug)]
struct Source {
    /// `torch._C._cuda_memoryStats` and `torch._C._cuda_getDevice`.
    statistics: Py<PyAny>,
    device: Py<PyAny>,
    /// The names of `torch.cuda`: whether CUDA is initialised is one of them.
    cuda: Py<PyDict>,
}

static SOURCE: PyOnceLock<Source> = PyOnceLock::new();
static USED: AtomicBool = AtomicBool::new(false);
static LOOKS: Thin = Thin::new(PLACE);

fn is_wanted() -> bool {
    USED.load(Ordering::Relaxed) && is_on(Layer::Memory)
}

/// At the beginning of step `step`, with detail or not: looks, or ceases to.
pub(super) fn begin_step(step: i64, detail: bool) {
    LOOKS.begin_step(step, detail && is_wanted());
}

/// What it costs a step, in ticks, spread over those without.
pub(super) fn cost() -> u64 {
    LOOKS.cost(is_wanted())
}

/// What the allocator says now; None where nobody wants to know, or it can't be asked. Called with the GIL held and no
/// exception set.
#[inline(always)]
pub(super) fn look() -> Option<Looked> {
    if LOOKS.is_on() { ask() } else { None }
}

/// What a look saw.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looked {
    allocated: u64,
    reserved: u64,
    /// Device and peak, as in the record.
    payload: u64,
}

impl Looked {
    /// As a device's allocator says by its first values, all of them or none.
    fn of(device: u8, values: [u64; allocator::OF_MODULES]) -> Option<Self> {
        let [allocated, peak, reserved] = values;
        let looked = Self { allocated, reserved, payload: u64::from(device) | peak << PEAK };
        (!values.contains(&u64::MAX)).then_some(looked)
    }

    /// Records it: of the call that began last on this thread, or `at_end` of the one that ends next. `at`: when.
    pub(super) fn record(self, state: &ThreadState, at: u64, at_end: bool) {
        let end = if at_end { AT_END } else { 0 };
        state.annotate(Record::new(Kind::Allocated, self.payload | end, at, self.allocated, self.reserved));
    }
}

#[cold]
fn ask() -> Option<Looked> {
    let began = ticks();
    // SAFETY: the caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    let looked = asked(py).unwrap_or_else(|error| {
        USED.store(false, Ordering::Relaxed);
        LOOKS.stop();
        program_errors::swallow(py, "memory of modules", Err(error));
        None
    });
    LOOKS.spend(ticks().saturating_sub(began));
    looked
}

fn asked(py: Python<'_>) -> PyResult<Option<Looked>> {
    let Some(source) = SOURCE.get(py) else { return Ok(None) };
    // The first question would initialise CUDA, which is the program's business.
    let initialised = source.cuda.bind(py).get_item(intern!(py, "_initialized"))?;
    if !initialised.is_some_and(|flag| flag.is_truthy().unwrap_or(false)) {
        return Ok(None);
    }
    // References that know that the GIL is held: others, let go of in here, wait for pyo3 to be entered by its own door.
    let device = source.device.bind(py).call0()?;
    let statistics = source.statistics.bind(py).call1((&device,))?;
    Ok(Looked::of(device.extract()?, allocator::values(statistics.cast::<PyDict>()?)?))
}

/// At the beginning of an optimizer's step, inside what is recorded of it.
pub(super) fn optimizer_begins(state: &ThreadState) {
    if let Some(looked) = look() {
        looked.record(state, ticks(), false);
    }
}

/// At its end; `memory.py` has asked already, and these are the first of the values.
pub(super) fn optimizer_ends(state: &ThreadState, device: u8, values: [u64; allocator::OF_MODULES]) {
    if LOOKS.is_on()
        && state.optimizers.depth() > 0
        && let Some(looked) = Looked::of(device, values)
    {
        looked.record(state, ticks(), true);
    }
}

/// Looks at memory when modules are called, from the next step on; `None`s: no more.
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
        // Functions of torch stay what they are, so the first ones serve for good.
        SOURCE.get_or_init(py, || Source { statistics, device, cuda });
    }
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(watch_module_memory, module)?)
}
