//! Ranges and numbers that the program names. A range is one record, written when it ends: what is open is kept on its
//! thread, so that ranges may end in any order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

use super::clock::ticks;
use super::interned::Interned;
use super::open_spans::{OPEN, Open};
use super::policy::{Layer, is_on};
use super::shape;
use super::thread::{self, RECORD, ThreadState};
use crate::shared::{ENABLED, STEP};
use probe_trace::known::Learned;
use probe_trace::record::{Kind, Record};

static SPAN_NAMES: Interned = Interned::new(|id, name| Learned::Span(id, name));
static METRIC_NAMES: Interned = Interned::new(|id, name| Learned::Metric(id, name));

/// Whether ranges are wanted, and numbers.
static SPANS: AtomicBool = AtomicBool::new(false);
/// See there.
static METRICS: AtomicBool = AtomicBool::new(false);

/// Ranges and numbers whose name had no place.
pub(super) static UNNAMED_SPANS: AtomicU64 = AtomicU64::new(0);
/// See there.
pub(super) static UNNAMED_METRICS: AtomicU64 = AtomicU64::new(0);
/// Ranges given up because too many were open.
pub(super) static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Ranges that were open when a profiler stopped.
pub(super) static CUT: AtomicU64 = AtomicU64::new(0);

const OURS: u64 = 0;
/// A range of torch's RecordFunction.
const TORCH: u64 = 1;
const NVTX: u64 = 2;

/// Names that torch gives to ranges of its own.
const OF_TORCH: [&[u8]; 24] = [
    b"Optimizer.",
    b"enumerate(",
    b"DistributedDataParallel.",
    b"DataParallel.",
    b"FSDP::",
    b"FSDP.",
    b"gloo:",
    b"nccl:",
    b"mpi:",
    b"ucc:",
    b"xccl:",
    b"c10d::",
    b"torch::",
    b"torch.",
    b"autograd::",
    b"ProfilerStep#",
    b"## Call ",
    b"Torch-Compiled Region",
    b"TorchDynamo ",
    b"Pregraph bytecode",
    b"AOTDispatcher ",
    b"Inductor",
    b"CompiledFunction",
    b"probe_agent.",
];

/// A range of the user's own began, by RecordFunction's word.
pub(super) fn range_began(state: &ThreadState, range: u64, name: &[u8]) {
    if SPANS.load(Ordering::Relaxed) && !OF_TORCH.iter().any(|prefix| name.starts_with(prefix)) {
        begin(state, range, name, TORCH);
    }
}

/// A range ended that may be one of those.
pub(super) fn range_ended(state: &ThreadState, range: u64) {
    if state.spans.count.get() > 0 {
        end(state, range, TORCH);
    }
}

/// The end of a range will not be heard of: it gets no row, and is counted.
pub(super) fn give_up(state: &ThreadState, range: u64) {
    let spans = &state.spans;
    let ours = |open: Open| open.key == range && open.said >> 40 == TORCH;
    if let Some(place) = (0..spans.count.get()).rev().find(|place| ours(spans.open[*place].get())) {
        spans.remove(place);
        CUT.fetch_add(1, Ordering::Relaxed);
    }
}

fn begin(state: &ThreadState, key: u64, name: &[u8], kind: u64) -> bool {
    if state.mode.get() != RECORD || !ENABLED.load(Ordering::Relaxed) || !is_on(Layer::Spans) {
        return false;
    }
    let Some(name) = SPAN_NAMES.intern(name) else {
        UNNAMED_SPANS.fetch_add(1, Ordering::Relaxed);
        return false;
    };
    let spans = &state.spans;
    if spans.count.get() == OPEN {
        GIVEN_UP.fetch_add(1, Ordering::Relaxed);
        spans.remove(0);
    }
    let depth = spans.count.get();
    let parent = depth.checked_sub(1).map_or(0, |above| (spans.open[above].get().said & 0xffff) + 1);
    let said = u64::from(name) | parent << 16 | (depth as u64) << 32 | kind << 40;
    spans.open[depth].set(Open { key, begin: ticks(), step: STEP.load(Ordering::Relaxed), said });
    spans.count.set(depth + 1);
    true
}

fn end(state: &ThreadState, key: u64, kind: u64) {
    let now = ticks();
    let spans = &state.spans;
    let ours = |open: Open| open.key == key && open.said >> 40 == kind;
    let Some(place) = (0..spans.count.get()).rev().find(|place| ours(spans.open[*place].get())) else { return };
    let open = spans.open[place].get();
    spans.remove(place);
    // Switched off meanwhile: when it ended is not known to anybody later.
    if state.mode.get() == RECORD && ENABLED.load(Ordering::Relaxed) {
        state.instant(Record::new(Kind::Span, open.said, now, open.begin, open.step as u64));
    }
}

/// A range begins. What it returns ends it; 0 where it is not recorded.
#[pyfunction]
fn span_begin(name: &str) -> u64 {
    if !SPANS.load(Ordering::Relaxed) {
        return 0;
    }
    thread::with(|state| {
        let serial = state.spans.serial.get() + 1;
        state.spans.serial.set(serial);
        if begin(state, serial, name.as_bytes(), OURS) { serial } else { 0 }
    })
}

/// It ends.
#[pyfunction]
fn span_end(key: u64) {
    if key != 0 {
        thread::with(|state| end(state, key, OURS));
    }
}

/// An NVTX range begins; they nest.
#[pyfunction]
fn nvtx_push(name: &str) {
    if SPANS.load(Ordering::Relaxed) {
        thread::with(|state| begin(state, 0, name.as_bytes(), NVTX));
    }
}

/// The innermost one ends.
#[pyfunction]
fn nvtx_pop() {
    thread::with(|state| {
        if state.spans.count.get() > 0 {
            end(state, 0, NVTX);
        }
    });
}

/// A value as a number, or the place in [`REASONS`] of why it is none. Nothing here waits for a device.
pub(super) fn number(value: &Bound<'_, PyAny>) -> Result<f64, u64> {
    const DEVICE: u64 = 1;
    const NO_NUMBER: u64 = 2;
    let plain = |value: &Bound<'_, PyAny>| value.extract::<f64>().map_err(|_| NO_NUMBER);
    if value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
        return plain(value);
    }
    let py = value.py();
    // SAFETY: a living object.
    if unsafe { shape::is_tensor(value.as_ptr()) } {
        let is = |name| value.getattr(name).and_then(|found| found.extract::<bool>()).unwrap_or(false);
        if !is(intern!(py, "is_cpu")) {
            return Err(DEVICE);
        }
        return value.call_method0(intern!(py, "item")).map_err(|_| NO_NUMBER).and_then(|item| plain(&item));
    }
    let of_numpy = value.get_type().module().is_ok_and(|module| module.to_string_lossy().starts_with("numpy"));
    if of_numpy { plain(value) } else { Err(NO_NUMBER) }
}

/// Whether the program's numbers are wanted.
pub(super) fn wants_metrics() -> bool {
    METRICS.load(Ordering::Relaxed)
}

/// Whether numbers are recorded now.
pub(super) fn records_metrics() -> bool {
    METRICS.load(Ordering::Relaxed) && ENABLED.load(Ordering::Relaxed) && is_on(Layer::Metrics)
}

/// Records a number of ours.
pub(super) fn log_metric(name: &[u8], value: f64, step: i64) {
    let Some(id) = METRIC_NAMES.intern(name) else { return };
    thread::with(|state| {
        if state.mode.get() == RECORD {
            state.instant(Record::new(Kind::Metric, u64::from(id), ticks(), value.to_bits(), step as u64));
        }
    });
}

/// Records numbers by name.
#[pyfunction]
fn log_metrics(values: &Bound<'_, PyDict>) {
    if !records_metrics() {
        return;
    }
    thread::with(|state| {
        if state.mode.get() != RECORD {
            return;
        }
        let is_over = state.between_steps.get() && !state.data_seen.get();
        let step = STEP.load(Ordering::Relaxed) - i64::from(is_over);
        for (name, value) in values.iter() {
            let id =
                name.cast::<PyString>().ok().and_then(|name| METRIC_NAMES.intern(name.to_string_lossy().as_bytes()));
            let Some(id) = id else {
                UNNAMED_METRICS.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let (number, reason) = match number(&value) {
                Ok(number) => (number, 0),
                Err(reason) => (0.0, reason),
            };
            let payload = u64::from(id) | reason << 16;
            state.instant(Record::new(Kind::Metric, payload, ticks(), number.to_bits(), step as u64));
        }
    });
}

/// The name of a range, or of a number.
pub(crate) fn name_of(is_span: bool, id: u64) -> Option<String> {
    if is_span { SPAN_NAMES.get(id) } else { METRIC_NAMES.get(id) }
}

/// Chooses what is recorded.
#[pyfunction]
fn use_spans(spans: Option<bool>, metrics: Option<bool>) {
    spans.into_iter().for_each(|on| SPANS.store(on, Ordering::Relaxed));
    metrics.into_iter().for_each(|on| METRICS.store(on, Ordering::Relaxed));
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(span_begin, module)?)?;
    module.add_function(wrap_pyfunction!(span_end, module)?)?;
    module.add_function(wrap_pyfunction!(nvtx_push, module)?)?;
    module.add_function(wrap_pyfunction!(nvtx_pop, module)?)?;
    module.add_function(wrap_pyfunction!(log_metrics, module)?)?;
    module.add_function(wrap_pyfunction!(use_spans, module)?)
}
