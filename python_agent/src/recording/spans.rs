//! Ranges and numbers that the program names. A range is one record, written when it ends: open ranges are kept on their
//! thread, so that they may end in any order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

use super::clock::ticks;
use super::interned::InternedNames;
use super::open_spans::{MAX_OPEN, OpenSpan};
use super::policy::{Layer, is_on};
use super::ranges_in_passes;
use super::scalar;
use super::shape;
use super::thread::{self, RECORD, ThreadState};
use crate::shared::{ENABLED, STEP};
use probe_trace::record::{RecordKind, RingRecord};
use probe_trace::symbol_table::LearnedName;

static SPAN_NAMES: InternedNames = InternedNames::new(|id, name| LearnedName::Span(id, name));
static METRIC_NAMES: InternedNames = InternedNames::new(|id, name| LearnedName::Metric(id, name));

/// Whether ranges are recorded.
static SPANS: AtomicBool = AtomicBool::new(false);
/// Whether numbers are recorded.
static METRICS: AtomicBool = AtomicBool::new(false);

/// Ranges that are lost because the table of names is full.
pub(super) static UNNAMED_SPANS: AtomicU64 = AtomicU64::new(0);
/// Numbers that are lost because the table of names is full.
pub(super) static UNNAMED_METRICS: AtomicU64 = AtomicU64::new(0);
/// Ranges given up because too many were open.
pub(super) static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// Ranges that are lost because they were open when a profiler stopped.
pub(super) static CUT: AtomicU64 = AtomicU64::new(0);

/// A range of the agent's own API.
const OURS: u64 = 0;
/// A range of torch's RecordFunction.
const TORCH: u64 = 1;
/// A range of NVTX.
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

/// Notes that a range of torch's RecordFunction began; those that torch itself opens are left out.
pub(super) fn range_began(state: &ThreadState, range: u64, name: &[u8]) {
    if SPANS.load(Ordering::Relaxed) && !OF_TORCH.iter().any(|prefix| name.starts_with(prefix)) {
        ranges_in_passes::range_began();
        begin(state, range, name, TORCH);
    }
}

/// Notes that a range of torch's RecordFunction ended, which [`range_began`] may have noted.
pub(super) fn range_ended(state: &ThreadState, range: u64) {
    if state.spans.count.get() > 0 {
        end(state, range, TORCH);
    }
}

/// Gives up a range whose end will not be reported: it gets no row, and is counted.
pub(super) fn give_up(state: &ThreadState, range: u64) {
    let spans = &state.spans;
    let ours = |open: OpenSpan| open.key == range && open.payload >> 40 == TORCH;
    if let Some(index) = (0..spans.count.get()).rev().find(|index| ours(spans.open[*index].get())) {
        spans.remove(index);
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
    if spans.count.get() == MAX_OPEN {
        GIVEN_UP.fetch_add(1, Ordering::Relaxed);
        spans.remove(0);
    }
    let depth = spans.count.get();
    let parent = depth.checked_sub(1).map_or(0, |above| (spans.open[above].get().payload & 0xffff) + 1);
    let payload = u64::from(name) | parent << 16 | (depth as u64) << 32 | kind << 40;
    spans.open[depth].set(OpenSpan { key, begin: ticks(), step: STEP.load(Ordering::Relaxed), payload });
    spans.count.set(depth + 1);
    true
}

fn end(state: &ThreadState, key: u64, kind: u64) {
    let now = ticks();
    let spans = &state.spans;
    let ours = |open: OpenSpan| open.key == key && open.payload >> 40 == kind;
    let Some(index) = (0..spans.count.get()).rev().find(|index| ours(spans.open[*index].get())) else { return };
    let open = spans.open[index].get();
    spans.remove(index);
    // Where recording was switched off meanwhile, the range is dropped: its end would not be known later.
    if state.mode.get() == RECORD && ENABLED.load(Ordering::Relaxed) {
        state.instant(RingRecord::new(RecordKind::Span, open.payload, now, open.begin, open.step as u64));
    }
}

/// Begins a range. Returns the key for [`span_end`]; 0 where the range is not recorded.
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

/// Ends the range that [`span_begin`] began.
#[pyfunction]
fn span_end(key: u64) {
    if key != 0 {
        thread::with(|state| end(state, key, OURS));
    }
}

/// Begins an NVTX range. NVTX ranges nest.
#[pyfunction]
fn nvtx_push(name: &str) {
    if SPANS.load(Ordering::Relaxed) {
        thread::with(|state| begin(state, 0, name.as_bytes(), NVTX));
    }
}

/// Ends the innermost NVTX range.
#[pyfunction]
fn nvtx_pop() {
    thread::with(|state| {
        if state.spans.count.get() > 0 {
            end(state, 0, NVTX);
        }
    });
}

/// A value as a number, or why it is none: 1 plus the index of the reason in [`REASONS`](probe_trace::payload::REASONS). Never
/// waits for a device.
pub(super) fn number(value: &Bound<'_, PyAny>) -> Result<f64, u64> {
    const DEVICE: u64 = 1;
    const NO_NUMBER: u64 = 2;
    let plain = |value: &Bound<'_, PyAny>| value.extract::<f64>().map_err(|_| NO_NUMBER);
    if value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
        return plain(value);
    }
    // SAFETY: a living object.
    if unsafe { shape::is_tensor(value.as_ptr()) } {
        if !scalar::is_on_host(value) {
            return Err(DEVICE);
        }
        return scalar::item(value).map_err(|_| NO_NUMBER).and_then(|item| plain(&item));
    }
    let of_numpy = value.get_type().module().is_ok_and(|module| module.to_string_lossy().starts_with("numpy"));
    if of_numpy { plain(value) } else { Err(NO_NUMBER) }
}

/// Whether the layer of the program's numbers is installed.
pub(super) fn wants_metrics() -> bool {
    METRICS.load(Ordering::Relaxed)
}

/// Whether numbers are recorded now.
pub(super) fn records_metrics() -> bool {
    METRICS.load(Ordering::Relaxed) && ENABLED.load(Ordering::Relaxed) && is_on(Layer::Metrics)
}

/// Records a number that the agent itself names.
pub(super) fn log_metric(name: &[u8], value: f64, step: i64) {
    let Some(id) = METRIC_NAMES.intern(name) else { return };
    thread::with(|state| {
        if state.mode.get() == RECORD {
            state.instant(RingRecord::new(RecordKind::Metric, u64::from(id), ticks(), value.to_bits(), step as u64));
        }
    });
}

/// Records numbers of the program by name.
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
            state.instant(RingRecord::new(RecordKind::Metric, payload, ticks(), number.to_bits(), step as u64));
        }
    });
}

/// The name of a range or of a number, by its id.
pub(crate) fn name_of(is_span: bool, id: u64) -> Option<String> {
    if is_span { SPAN_NAMES.get(id) } else { METRIC_NAMES.get(id) }
}

/// Switches the recording of ranges and numbers on or off; None leaves it as it is.
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
