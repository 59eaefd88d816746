//! Calls of `backward()` and `grad()`: their begin and end, and the fallback for autograd's nodes.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::autograd_passes::{FIRST_ELSEWHERE, LAST_ELSEWHERE, NODE_SEEN, NODES, PASSES, WATCHED};
use super::boundary::{self, DETAIL};
use super::clock::ticks;
use super::forward::beside_error;
use super::loss;
use super::optimizer;
use super::policy::{self, Layer};
use super::ranges_in_passes;
use super::slot;
use super::thread::{self, BESIDE, RECORD, SUSPENSIONS};
use crate::shared::ENABLED;
use probe_trace::payload::RETURNS_GRADIENTS;
use probe_trace::record::{RecordKind, RingRecord};

/// Passes in which the callback reported no node, before it ever reported one.
static SILENT: AtomicU32 = AtomicU32::new(0);
/// Silent passes after which the callback is known not to work here.
const TOO_SILENT: u32 = 3;

/// A backward pass: what `engine(*args, **kwargs)` returns or raises. `when_silent()` is called when the callback that should
/// report its nodes never reports any. `guards` has torch's tracing context of each thread; where there is one, torch.compile makes a
/// graph by a pass over tensors without data, which is none. Not for a snippet beside training.
///
/// In one function, because between two that Python calls one after the other the handler of a signal may raise, and what has
/// begun would never end.
#[pyfunction]
#[pyo3(signature = (engine, when_silent, guards, /, *args, **kwargs))]
fn run_backward<'py>(
    engine: &Bound<'py, PyAny>,
    when_silent: &Bound<'py, PyAny>,
    guards: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    // What a handler of a signal raises meanwhile is the program's.
    let context = guards.getattr_opt(intern!(engine.py(), "tracing_context"))?;
    if context.is_some_and(|context| !context.is_none()) {
        return engine.call(args, kwargs);
    }
    let accumulates = accumulates(kwargs);
    backward_begin(accumulates)?;
    let result = engine.call(args, kwargs);
    let was_silent = backward_end();
    // grad() collects gradients of anything; backward() accumulates those of a loss.
    if result.is_ok() && accumulates == Some(true) {
        loss::record(args);
    }
    if was_silent {
        when_silent.call0()?;
    }
    // torch.compile compiles a backward pass when it first comes to it, and resets slots meanwhile.
    thread::with(|state| {
        slot::put_back(engine.py(), state, boundary::may_lack_forward(state));
        state.pass_seen.set(true);
        optimizer::note_backward_end(state);
        boundary::note_backward_end(engine.py(), state);
    });
    result
}

/// Whether the engine adds gradients to parameters, as `backward()` asks, or only returns them, as `grad()` does. None: a caller
/// that does not say.
fn accumulates(kwargs: Option<&Bound<'_, PyDict>>) -> Option<bool> {
    let kwargs = kwargs?;
    kwargs.get_item(intern!(kwargs.py(), "accumulate_grad")).ok()??.extract().ok()
}

/// Records that the engine is about to run.
fn backward_begin(accumulates: Option<bool>) -> PyResult<()> {
    thread::with(|state| {
        if state.mode.get() == BESIDE {
            return Err(beside_error());
        }
        if state.backward.depth() == 0 {
            PASSES.fetch_add(1, Ordering::Relaxed);
            state.first_node.set(0);
            state.last_node.set(0);
            FIRST_ELSEWHERE.store(0, Ordering::Relaxed);
            LAST_ELSEWHERE.store(0, Ordering::Relaxed);
            ranges_in_passes::pass_begins(state, DETAIL.load(Ordering::Relaxed));
        }
        let payload = if accumulates == Some(false) { RETURNS_GRADIENTS } else { 0 };
        state.open_if(policy::is_on(Layer::Backward), &state.backward, RecordKind::BackwardBegin, payload);
        Ok(())
    })
}

/// Records that the engine has run. True when the callback that should report its nodes never reports any.
fn backward_end() -> bool {
    thread::with(|state| {
        // 0 means none: with 1 subtracted it wraps to the largest number, so the minimum is the earliest of both.
        let earliest = |a: u64, b: u64| a.wrapping_sub(1).min(b.wrapping_sub(1)).wrapping_add(1);
        let first = earliest(state.first_node.get(), FIRST_ELSEWHERE.load(Ordering::Relaxed));
        let last = state.last_node.get().max(LAST_ELSEWHERE.load(Ordering::Relaxed));
        let watched = WATCHED.load(Ordering::Relaxed) || !NODES.load(Ordering::Relaxed);
        state.close(&state.backward, RecordKind::BackwardEnd, u64::from(!watched), first, last);
        if state.backward.depth() == 0 {
            ranges_in_passes::pass_ended(state);
            optimizer::forget_hooked(state);
            // A pass within which a forked child has begun to record is not counted any more.
            let _ = PASSES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1));
        }
        watched
            && NODES.load(Ordering::Relaxed)
            && !NODE_SEEN.load(Ordering::Relaxed)
            && state.mode.get() == RECORD
            && SILENT.fetch_add(1, Ordering::Relaxed) + 1 == TOO_SILENT
    })
}

/// Fallback for nodes: records that a gradient of the module at address `module` became ready.
#[pyfunction]
#[pyo3(signature = (module, _parameter = None))]
fn gradient_ready(module: u64, _parameter: Option<&Bound<'_, PyAny>>) {
    if !ENABLED.load(Ordering::Relaxed) || SUSPENSIONS.load(Ordering::Relaxed) != 0 {
        return;
    }
    thread::with(|state| {
        if state.mode.get() != RECORD {
            return;
        }
        let now = ticks();
        if state.backward.depth() == 0 {
            LAST_ELSEWHERE.fetch_max(now, Ordering::Relaxed);
        } else {
            state.last_node.set(now);
        }
        if DETAIL.load(Ordering::Relaxed) && policy::is_on(Layer::Backward) {
            state.instant(RingRecord::new(RecordKind::GradReady, 0, now, module, 0));
        }
    });
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_backward, module)?)?;
    module.add_function(wrap_pyfunction!(gradient_ready, module)?)
}
