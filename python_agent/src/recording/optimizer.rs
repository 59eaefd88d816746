//! Steps of optimizers: of which class, and which of them end a training step.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::autograd_passes::PASSES;
use super::boundary::{self, DETAIL};
use super::forward::beside_error;
use super::interned::truncate_utf8;
use super::primary_optimizer::PrimaryOptimizer;
use super::thread::{self, BESIDE, RECORD, ThreadState};
use super::{device, first_use, forward_hooks, module_memory, process_flag, slot};
use crate::shared::{ENABLED, STEP};
use probe_trace::payload::BY_OPTIMIZER;
use probe_trace::record::RecordKind;
use probe_trace::symbol_table::LearnedName;

const MAX_NAMES: usize = 64;
const LENGTH: usize = 63;

/// A class name, written once. Optimizers have few classes, so a fixed table needs neither lock nor memory.
struct OptimizerName {
    /// 0 free, 1 being written, 2 there.
    state: AtomicU8,
    length: AtomicU8,
    bytes: [AtomicU8; LENGTH],
}

static CLASSES: [OptimizerName; MAX_NAMES] = [const {
    OptimizerName { state: AtomicU8::new(0), length: AtomicU8::new(0), bytes: [const { AtomicU8::new(0) }; LENGTH] }
}; MAX_NAMES];

/// The id of a class name (its first 63 bytes); [`MAX_NAMES`] when the table is full.
fn intern(name: &[u8]) -> u64 {
    let name = truncate_utf8(name, LENGTH);
    for (id, entry) in CLASSES.iter().enumerate() {
        match entry.state.load(Ordering::Acquire) {
            2 => {
                let same = usize::from(entry.length.load(Ordering::Relaxed)) == name.len()
                    && entry.bytes.iter().zip(name).all(|(byte, wanted)| byte.load(Ordering::Relaxed) == *wanted);
                if same {
                    return id as u64;
                }
            }
            0 if entry.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() => {
                entry.bytes.iter().zip(name).for_each(|(byte, value)| byte.store(*value, Ordering::Relaxed));
                entry.length.store(name.len() as u8, Ordering::Relaxed);
                entry.state.store(2, Ordering::Release);
                super::module_names::learned(&LearnedName::Optimizer(id as u64, &String::from_utf8_lossy(name)));
                return id as u64;
            }
            _ => {}
        }
    }
    MAX_NAMES as u64
}

/// The class name behind an id.
pub(crate) fn class_name(id: u64) -> Option<String> {
    let entry = CLASSES.get(id as usize).filter(|entry| entry.state.load(Ordering::Acquire) == 2)?;
    let length = usize::from(entry.length.load(Ordering::Relaxed));
    let bytes: Vec<u8> = entry.bytes.iter().take(length).map(|byte| byte.load(Ordering::Relaxed)).collect();
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether torch's RecordFunction callbacks record optimizers' steps.
pub(super) static OPTIMIZERS: AtomicBool = AtomicBool::new(false);

/// Whether an optimizer stepped on one of autograd's own threads, in a pass with whose end the training step ends.
static ENDS_WITH_PASS: AtomicBool = AtomicBool::new(false);

/// Which optimizer's steps are the training steps: those of the first one that finished a step.
static PRIMARY_OPTIMIZER: PrimaryOptimizer = PrimaryOptimizer::new();

/// Begins anew in a forked child that becomes an agent: its own training says which optimizer is the primary one.
pub(super) fn begin_anew() {
    ENDS_WITH_PASS.store(false, Ordering::Relaxed);
    PRIMARY_OPTIMIZER.forget();
}

/// Begins an optimizer's step. One within another (torch's own range within our wrapper, an optimizer that wraps one) is part of
/// the outer one.
pub(super) fn begin(state: &ThreadState, class: &[u8]) {
    if state.optimizers.depth() > 0 {
        return state.optimizers.open(|| false);
    }
    state.optimizer.set(0);
    let mark = device::mark_if(DETAIL.load(Ordering::Relaxed));
    if !state.open_marked(&state.optimizers, RecordKind::OptimizerBegin, intern(class), mark) {
        device::take_back(mark);
    }
}

/// Ends an optimizer's step.
pub(super) fn end(state: &ThreadState, class: &[u8]) {
    let ends_step = state.optimizers.depth() == 1
        && ENABLED.load(Ordering::Relaxed)
        && state.mode.get() == RECORD
        && is_primary(state.optimizer.get())
        && !boundary::belongs_to_last_step(state);
    // A pass in which parameters are updated, often each by an optimizer of its own, belongs to the step as a whole.
    let ends_later = ends_step && state.is_in_backward() && PASSES.load(Ordering::Relaxed) > 0;
    if ends_later {
        ends_with_pass(state);
    }
    let ends_step = ends_step && !ends_later;
    // The end of a training step has an event in every step, so that each has a beginning on the device.
    let mark = device::mark_if(ends_step || state.optimizers.depth() == 1 && DETAIL.load(Ordering::Relaxed));
    // The record has the number of finished steps, and the step is over before anything else learns of it.
    let steps = if ends_step { boundary::end_step(state) } else { STEP.load(Ordering::Relaxed) };
    let steps = steps as u64 | u64::from(mark) << 48;
    if !state.close(&state.optimizers, RecordKind::OptimizerEnd, intern(class), u64::from(ends_step), steps) {
        device::take_back(mark);
    }
    if ends_step {
        boundary::note_optimizer_step();
        if !state.is_in_backward() {
            forward_hooks::close_all(state);
        }
        boundary::apply_detail(state);
    }
}

/// Notes that the training step ends with the backward pass that is open.
fn ends_with_pass(state: &ThreadState) {
    if state.backward.depth() > 0 {
        state.ends_with_pass.set(true);
    } else {
        ENDS_WITH_PASS.store(true, Ordering::Relaxed);
    }
}

/// Ends the training step if an optimizer has stepped in the backward pass that has ended on this thread.
#[inline]
pub(super) fn note_backward_end(state: &ThreadState) {
    if (state.ends_with_pass.get() || ENDS_WITH_PASS.load(Ordering::Relaxed)) && !state.is_in_backward() {
        end_with_pass(state);
    }
}

#[cold]
fn end_with_pass(state: &ThreadState) {
    let here = state.ends_with_pass.replace(false);
    let elsewhere = thread::may_train() && ENDS_WITH_PASS.swap(false, Ordering::Relaxed);
    if (here || elsewhere) && ENABLED.load(Ordering::Relaxed) && state.mode.get() == RECORD {
        boundary::note_optimizer_step();
        boundary::end_with_record(state, BY_OPTIMIZER);
    }
}

/// Whether a step of this optimizer ends a training step. `optimizer` 0: it is not known which one it is; then it does.
fn is_primary(optimizer: u64) -> bool {
    PRIMARY_OPTIMIZER.is_primary(optimizer)
}

/// Torch's global hook before an optimizer's step, inside the range that RecordFunction reports: notes which optimizer it is, and
/// does what needs Python at this point.
#[pyfunction]
fn optimizer_pre(py: Python<'_>, optimizer: &Bound<'_, PyAny>) -> PyResult<()> {
    if !ENABLED.load(Ordering::Relaxed) {
        if process_flag::may_begin() {
            // A forked child that trains.
            first_use::happened(py);
            if ENABLED.load(Ordering::Relaxed) {
                // Its first step is open: it is counted, and gets no row.
                boundary::leave_out_step();
                return optimizer_begin(optimizer);
            }
        }
        return Ok(());
    }
    thread::with(|state| match state.mode.get() {
        RECORD => {
            first_use::happened(py);
            let is_unseen = state.optimizers.depth() == 0 && PASSES.load(Ordering::Relaxed) > 0;
            if OPTIMIZERS.load(Ordering::Relaxed) && is_unseen {
                state.optimizer_by_hooks.set(state.backward.depth() + 1);
            }
            if is_by_hooks(state) {
                begin(state, optimizer.get_type().name()?.to_cow()?.as_bytes());
            }
            if state.optimizer.get() == 0 {
                state.optimizer.set(optimizer.as_ptr() as u64);
            }
            module_memory::optimizer_begins(state);
            slot::put_back_at_end(py, state, boundary::may_lack_forward(state));
            Ok(())
        }
        BESIDE => Err(beside_error()),
        _ => Ok(()),
    })
}

/// An optimizer's step and everything that torch does around it: what `step(*args, **kwargs)` returns or raises.
///
/// In one function, because between two that Python calls one after the other the handler of a signal may raise, and what has
/// begun would never end. Steps that torch began within this one and has not ended are ended here.
#[pyfunction]
fn run_optimizer_step<'py>(
    step: &Bound<'py, PyAny>,
    optimizer: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let depth = thread::with(|state| state.optimizers.depth());
    optimizer_begin(optimizer)?;
    let result = step.call(args, Some(kwargs));
    thread::with(|state| {
        while state.optimizers.depth() > depth + 1 {
            state.optimizers.close();
        }
    });
    optimizer_end(optimizer)?;
    result
}

/// Begins an optimizer's step, before everything that torch does around it. Torch does not call its hooks where the step is
/// compiled, so which optimizer it is, is noted here.
fn optimizer_begin(optimizer: &Bound<'_, PyAny>) -> PyResult<()> {
    thread::with(|state| {
        begin(state, optimizer.get_type().name()?.to_cow()?.as_bytes());
        if state.optimizers.depth() == 1 {
            state.optimizer.set(optimizer.as_ptr() as u64);
        }
        Ok(())
    })
}

/// Ends an optimizer's step, after everything that torch does around it.
fn optimizer_end(optimizer: &Bound<'_, PyAny>) -> PyResult<()> {
    thread::with(|state| {
        end(state, optimizer.get_type().name()?.to_cow()?.as_bytes());
        Ok(())
    })
}

/// Whether torch's hooks record the steps that begin and end now: torch's callback of ranges is not used for optimizers, or it was out
/// because of a backward pass ([`super::ranges_in_passes`]) when one without a wrapper of ours began.
fn is_by_hooks(state: &ThreadState) -> bool {
    !OPTIMIZERS.load(Ordering::Relaxed) || state.optimizer_by_hooks.get() > 0
}

/// Forgets a step that the hook before it began in the pass that has ended: it has raised, and the hook after it was not called.
pub(super) fn forget_hooked(state: &ThreadState) {
    if state.optimizer_by_hooks.get() > 1 {
        state.optimizer_by_hooks.set(0);
        state.optimizers.forget();
    }
}

/// Torch's global hook after an optimizer's step. Ends what the hook before it began.
#[pyfunction]
fn optimizer_post(optimizer: &Bound<'_, PyAny>) -> PyResult<()> {
    thread::with(|state| {
        if state.mode.get() == RECORD && state.optimizers.depth() > 0 && is_by_hooks(state) {
            if state.optimizers.depth() == 1 {
                state.optimizer_by_hooks.set(0);
            }
            end(state, optimizer.get_type().name()?.to_cow()?.as_bytes());
        }
        Ok(())
    })
}

/// Notes that an optimizer was made.
#[pyfunction]
fn optimizer_made(address: u64) {
    PRIMARY_OPTIMIZER.note_made(address);
}

/// Notes that an optimizer is gone. Its address may become another one's.
#[pyfunction]
fn optimizer_gone(address: u64) {
    PRIMARY_OPTIMIZER.note_gone(address);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(optimizer_pre, module)?)?;
    module.add_function(wrap_pyfunction!(run_optimizer_step, module)?)?;
    module.add_function(wrap_pyfunction!(optimizer_post, module)?)?;
    module.add_function(wrap_pyfunction!(optimizer_made, module)?)?;
    module.add_function(wrap_pyfunction!(optimizer_gone, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_names_are_interned_once() {
        let (adam, sgd) = (intern(b"AdamW"), intern(b"SGD"));
        assert_ne!(adam, sgd);
        assert_eq!(intern(b"AdamW"), adam);
        assert_eq!(class_name(sgd).as_deref(), Some("SGD"));
        let long = intern(&[b'x'; 100]);
        assert_eq!(class_name(long).map(|name| name.len()), Some(LENGTH));
        assert_eq!(class_name(MAX_NAMES as u64), None);
    }
}
