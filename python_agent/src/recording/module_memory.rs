//! Device memory at modules: what torch's caching allocator says when a call begins and when it ends, in few steps of
//! many, because asking is dear (it takes the allocator's lock and makes a dictionary of a hundred numbers).
//!
//! The device that is asked is the calling thread's current one. What a look costs is the caller's time, as with all
//! that is recorded of a call.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use super::clock::ticks;
use super::memory::{VALUES, value};
use super::policy::{self, Layer, is_on};
use super::record::{Kind, Record};
use super::thread::ThreadState;
use crate::analysis::payload::{AT_END, PEAK};

/// Modules are looked at in one of so many steps that have detail, the first one among them: that is where memory
/// most often runs out.
const THINNER: u32 = 64;

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
/// Whether modules are looked at in the step that is under way.
static WATCHING: AtomicBool = AtomicBool::new(false);
/// Of that step: one of how many; and ticks that the looks took.
static STRIDE: AtomicU32 = AtomicU32::new(0);
static OURS: AtomicU64 = AtomicU64::new(0);
/// Ticks a step, as the newest step with looks says.
static COST: AtomicU64 = AtomicU64::new(0);

/// One of how many steps has looks; 0: none.
fn stride() -> u32 {
    let wanted = USED.load(Ordering::Relaxed) && is_on(Layer::Memory);
    if wanted { u32::from(policy::in_force().stride) * THINNER } else { 0 }
}

/// At the beginning of step `step`, with detail or not: looks, or ceases to.
pub(super) fn begin_step(step: i64, detail: bool) {
    let stride = stride();
    let wanted = detail && stride > 0 && step % i64::from(stride) == 0;
    if WATCHING.load(Ordering::Relaxed) == wanted {
        return;
    }
    if wanted {
        STRIDE.store(stride, Ordering::Relaxed);
    } else {
        let stride = u64::from(STRIDE.load(Ordering::Relaxed).max(1));
        COST.store(OURS.swap(0, Ordering::Relaxed) / stride, Ordering::Relaxed);
    }
    WATCHING.store(wanted, Ordering::Relaxed);
}

/// What it costs a step, in ticks, spread over those without.
pub(super) fn cost() -> u64 {
    if stride() == 0 { 0 } else { COST.load(Ordering::Relaxed) }
}

/// What the allocator says now; None where nobody wants to know, or it can't be asked. Called with the GIL held and no
/// exception set.
#[inline(always)]
pub(super) fn look() -> Option<Looked> {
    if WATCHING.load(Ordering::Relaxed) { ask() } else { None }
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
    /// As of a device's statistics.
    pub(super) fn of(device: u8, statistics: &Bound<'_, PyDict>) -> PyResult<Option<Self>> {
        let [allocated, peak, reserved] = [VALUES[0], VALUES[1], VALUES[2]].map(|place| value(statistics, place));
        Ok(match (allocated?, peak?, reserved?) {
            (Some(allocated), Some(peak), Some(reserved)) => {
                Some(Self { allocated, reserved, payload: u64::from(device) | peak << PEAK })
            }
            _ => None,
        })
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
        WATCHING.store(false, Ordering::Relaxed);
        super::swallow(py, "memory of modules", Err(error));
        None
    });
    OURS.fetch_add(ticks().saturating_sub(began), Ordering::Relaxed);
    looked
}

fn asked(py: Python<'_>) -> PyResult<Option<Looked>> {
    let Some(source) = SOURCE.get(py) else { return Ok(None) };
    // The first question would initialise CUDA, which is the program's business.
    let initialised = source.cuda.bind(py).get_item(intern!(py, "_initialized"))?;
    if !initialised.is_some_and(|flag| flag.is_truthy().unwrap_or(false)) {
        return Ok(None);
    }
    let device = source.device.call0(py)?;
    let statistics = source.statistics.call1(py, (&device,))?;
    Looked::of(device.extract(py)?, statistics.bind(py).cast::<PyDict>()?)
}

/// At the beginning of an optimizer's step, inside what is recorded of it.
pub(super) fn optimizer_begins(state: &ThreadState) {
    if let Some(looked) = look() {
        looked.record(state, ticks(), false);
    }
}

/// At its end; `memory.py` has asked already.
pub(super) fn optimizer_ends(state: &ThreadState, device: u8, statistics: &Bound<'_, PyDict>) -> PyResult<()> {
    if WATCHING.load(Ordering::Relaxed)
        && state.optimizers.depth() > 0
        && let Some(looked) = Looked::of(device, statistics)?
    {
        looked.record(state, ticks(), true);
    }
    Ok(())
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
