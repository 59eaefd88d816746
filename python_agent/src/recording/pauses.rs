//! Garbage collections and compilations: while one runs, no other thread runs Python.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::clock::ticks;
use super::policy::{Layer, is_on};
use super::thread::{self, RECORD};
use crate::shared::ENABLED;
use probe_trace::payload::{COMPILATION, WITHOUT_ID};
use probe_trace::record::{RecordKind, RingRecord};

/// Whether the layer's mechanism is in.
static PAUSES: AtomicBool = AtomicBool::new(false);
/// When the current garbage collection began, in ticks: Python runs one at a time. 0: none runs, or it is not recorded.
static COLLECTING: AtomicU64 = AtomicU64::new(0);
/// When the current compilation began, in ticks; torch reports the outermost one. 0: none runs, or it is not recorded.
static COMPILING: AtomicU64 = AtomicU64::new(0);

/// Forgets in a forked child what another thread of the parent had begun.
pub(super) fn begin_anew() {
    COLLECTING.store(0, Ordering::Relaxed);
    COMPILING.store(0, Ordering::Relaxed);
}

/// Whether pauses are recorded now.
pub(super) fn are_recorded() -> bool {
    PAUSES.load(Ordering::Relaxed) && is_on(Layer::Pauses)
}

fn begin(start: &AtomicU64) {
    let records = are_recorded() && ENABLED.load(Ordering::Relaxed);
    start.store(if records { ticks() } else { 0 }, Ordering::Relaxed);
}

fn end(start: &AtomicU64, payload: u64, low: u64, high: u64) {
    let began = start.swap(0, Ordering::Relaxed);
    if began != 0 && ENABLED.load(Ordering::Relaxed) {
        thread::with(|state| {
            if state.mode.get() == RECORD {
                let words = low.min(u64::from(u32::MAX)) | high.min(u64::from(u32::MAX)) << 32;
                state.instant(RingRecord::new(RecordKind::Pause, payload, ticks(), began, words));
            }
        });
    }
}

/// For `gc.callbacks`: a collection starts or stops. Raises nothing.
#[pyfunction]
fn garbage_collection(phase: &Bound<'_, PyAny>, info: &Bound<'_, PyAny>) {
    if phase.is_exact_instance_of::<PyString>() && phase.eq(pyo3::intern!(phase.py(), "start")).unwrap_or(false) {
        return begin(&COLLECTING);
    }
    let Ok(info) = info.cast::<PyDict>() else { return };
    let number = |key| info.get_item(key).ok().flatten().and_then(|value| value.extract::<u64>().ok());
    let py = info.py();
    let generation = number(pyo3::intern!(py, "generation")).unwrap_or_default().min(0xff);
    let collected = number(pyo3::intern!(py, "collected")).unwrap_or_default();
    let uncollectable = number(pyo3::intern!(py, "uncollectable")).unwrap_or_default();
    end(&COLLECTING, generation, collected, uncollectable);
}

/// Notes that TorchDynamo begins to compile.
#[pyfunction]
fn compilation_begin() {
    begin(&COMPILING);
}

/// Notes that TorchDynamo has compiled. `compile_id` is FRAME/COMPILATION as torch writes it, if it does.
#[pyfunction]
#[pyo3(signature = (compile_id=None))]
fn compilation_end(compile_id: Option<&str>) {
    let id = compile_id.and_then(|id| id.split_once('/')).and_then(|(frame, compilation)| {
        // Compiled autograd writes !0/3/1, and a frame that was compiled after a graph break 3/1_1.
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        (digits(frame) && digits(compilation)).then(|| Some((frame.parse().ok()?, compilation.parse().ok()?)))?
    });
    match id {
        Some((frame, compilation)) => end(&COMPILING, COMPILATION, frame, compilation),
        None => end(&COMPILING, COMPILATION | WITHOUT_ID, 0, 0),
    }
}

/// Switches the layer's mechanism on or off.
#[pyfunction]
fn use_pauses(on: bool) {
    PAUSES.store(on, Ordering::Relaxed);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(garbage_collection, module)?)?;
    module.add_function(wrap_pyfunction!(compilation_begin, module)?)?;
    module.add_function(wrap_pyfunction!(compilation_end, module)?)?;
    module.add_function(wrap_pyfunction!(use_pauses, module)?)
}
