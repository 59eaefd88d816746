//! Steps: when one ends, where snippets may run between two, and the switches that take effect there.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use pyo3::prelude::*;

use super::clock::ticks;
use super::doubling_count::DoublingCount;
use super::thread::{self, RECORD, SUSPENDED, SUSPENSIONS, ThreadState};
use super::thread_mode::ThreadMode;
use super::{
    called_modules, device, module_memory, no_steps, operators, pauses, policy, processor, program_errors,
    ranges_in_passes, torch_callbacks,
};
use crate::shared::{self, ATTACHED, BOUNDARY_WANTED, STEP, TRAINING_THREAD};
use probe_trace::StepEnd;
use probe_trace::payload::{BY_BACKWARD, BY_CALL, BY_OPTIMIZER, CAPTURED, UNIT_UNKNOWN};
use probe_trace::record::{RecordKind, RingRecord};

/// Whether modules are recorded in the current step.
pub(crate) static DETAIL: AtomicBool = AtomicBool::new(false);
/// The newest record's payload about the step's detail and layers; [`NONE_RECORDED`]: there is no record yet.
static RECORDED_DETAIL: AtomicU64 = AtomicU64::new(NONE_RECORDED);
const NONE_RECORDED: u64 = u64::MAX;
/// Whether a training step has ever ended.
pub(crate) static STEPPED: AtomicBool = AtomicBool::new(false);

pub(super) static BOUNDARY: Mutex<Option<Py<PyAny>>> = Mutex::new(None);

/// What ends steps; 0: no step has ended.
static UNIT: AtomicU8 = AtomicU8::new(0);
const OPTIMIZER: u8 = 1;
const MARKED: u8 = 2;
const BACKWARD: u8 = 3;
const CALL: u8 = 4;

/// Backward passes of modules, while no step has ended.
static PASSES_WITHOUT_STEP: DoublingCount = DoublingCount::new(FIRST_ASK);
/// The number of [`PASSES_WITHOUT_STEP`] from which on the agent looks for an optimizer that may still step (gradients may be
/// accumulated over many passes).
const FIRST_ASK: u32 = 8;

/// Outermost calls that did not train, of modules that were called before, in a process in which nothing has trained.
static CALLS_WITHOUT_STEP: DoublingCount = DoublingCount::new(FIRST_ASK_OF_CALLS);
/// The number of [`CALLS_WITHOUT_STEP`] from which on the agent looks for an optimizer that may still step: some programs validate
/// before they train. The first call of each module is not counted, so this is the twelfth call of a single one.
const FIRST_ASK_OF_CALLS: u32 = 11;

/// The most steps of an optimizer that are one training step.
const MAX_REPEATED: u32 = 64;

/// Begins anew in a forked child that becomes an agent: it has made no step, and nothing says so far what ends one.
pub(super) fn begin_anew() {
    UNIT.store(0, Ordering::Relaxed);
    for flag in [&DETAIL, &policy::IS_CAPTURED, &STEPPED, &ATTACHED] {
        flag.store(false, Ordering::Relaxed);
    }
    RECORDED_DETAIL.store(NONE_RECORDED, Ordering::Relaxed);
    STEP.store(0, Ordering::Relaxed);
    TRAINING_THREAD.store(0, Ordering::Relaxed);
    PASSES_WITHOUT_STEP.reset();
    CALLS_WITHOUT_STEP.reset();
    called_modules::forget();
    no_steps::forget();
}

/// What ends steps; None while none has ended.
pub fn unit() -> Option<&'static str> {
    let end = match UNIT.load(Ordering::Relaxed) {
        OPTIMIZER => StepEnd::ByOptimizer,
        MARKED => StepEnd::ByMark,
        BACKWARD => StepEnd::ByBackward,
        CALL => StepEnd::ByCall,
        _ => return None,
    };
    Some(end.as_str())
}

/// Notes that an optimizer has ended a step: from here on optimizers end the steps.
pub(super) fn note_optimizer_step() {
    UNIT.store(OPTIMIZER, Ordering::Relaxed);
}

/// Notes that a backward pass has ended. Where no optimizer steps, this ends a step.
#[inline]
pub(super) fn note_backward_end(py: Python<'_>, state: &ThreadState) {
    if matches!(UNIT.load(Ordering::Relaxed), 0 | BACKWARD | CALL) {
        pass_may_end(py, state);
    }
}

#[cold]
fn pass_may_end(py: Python<'_>, state: &ThreadState) {
    let is_recorded = state.mode.get() == RECORD && shared::ENABLED.load(Ordering::Relaxed);
    // A pass within the function of another one (derivatives of derivatives) has no outermost call of its own before it.
    let has_forward = TRAINING_THREAD.load(Ordering::Relaxed) != 0 && !state.between_steps.get();
    if !is_recorded || !has_forward || !state.is_idle() {
        return;
    }
    if UNIT.load(Ordering::Relaxed) == BACKWARD {
        return end_with_record(state, BY_BACKWARD);
    }
    // The process trains after all.
    let _ = UNIT.compare_exchange(CALL, 0, Ordering::Relaxed, Ordering::Relaxed);
    if becomes_unit(py, &PASSES_WITHOUT_STEP, BACKWARD) {
        end_with_record(state, BY_BACKWARD | UNIT_UNKNOWN);
    }
}

/// Counts one more event that may end steps, and returns whether such events do from now on: there have been enough of them, and
/// there is no optimizer that may still step.
fn becomes_unit(py: Python<'_>, events: &DoublingCount, unit: u8) -> bool {
    let Some(count) = events.add() else { return false };
    if may_step(py) {
        if unit == BACKWARD {
            no_steps::note_backward_passes(count);
        } else if ATTACHED.load(Ordering::Relaxed) {
            no_steps::evaluated(count);
        }
        return false;
    }
    // Meanwhile an optimizer may have stepped on another thread.
    UNIT.compare_exchange(0, unit, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Whether there is an optimizer that may still step, or this is not known.
fn may_step(py: Python<'_>) -> bool {
    let answer = py.import("probe_agent.torch.optimizer").and_then(|module| module.call_method0("is_any"));
    let may_step = answer.and_then(|is_any| is_any.extract::<bool>());
    let knows = may_step.as_ref().is_ok_and(|may_step| !may_step);
    program_errors::swallow(py, "looking for an optimizer", may_step.map(drop));
    !knows
}

/// Notes that an outermost call of the module at this address has returned. Where nothing trains, this ends a step.
#[inline]
pub(super) fn note_call_end(py: Python<'_>, state: &ThreadState, module: usize) {
    if matches!(UNIT.load(Ordering::Relaxed), 0 | CALL) && state.root_has_parameters.get() {
        call_may_end(py, state, module);
    }
}

#[cold]
fn call_may_end(py: Python<'_>, state: &ThreadState, module: usize) {
    let here = TRAINING_THREAD.load(Ordering::Relaxed);
    let has_passes = PASSES_WITHOUT_STEP.count() > 0;
    if has_passes || here != thread::identifier() || !shared::ENABLED.load(Ordering::Relaxed) || !state.is_idle() {
        return;
    }
    let unit = UNIT.load(Ordering::Relaxed);
    if state.call_mode.get() == 0 {
        if unit == 0 {
            no_steps::note_training_call(|| may_step(py));
        }
    } else if unit == CALL {
        end_with_record(state, BY_CALL);
    } else if called_modules::was_called(module) && becomes_unit(py, &CALLS_WITHOUT_STEP, CALL) {
        end_with_record(state, BY_CALL | UNIT_UNKNOWN);
    }
}

/// Ends a step because the program says so; from here on the program ends the steps.
pub(super) fn end_step_by_program(state: &ThreadState) {
    UNIT.store(MARKED, Ordering::Relaxed);
    end_with_record(state, 0);
}

/// Ends a step with a record of its own; `payload` says what ended it.
pub(super) fn end_with_record(state: &ThreadState, payload: u64) {
    // Where optimizers end the steps, each has a beginning on the device.
    let mark = device::mark_if(payload == BY_OPTIMIZER);
    let steps = end_step(state);
    if !state.instant(RingRecord::new(RecordKind::MarkStep, payload, ticks(), 0, steps as u64).marked(mark)) {
        device::take_back(mark);
    }
    apply_detail(state);
}

/// Ends a training step on this thread. Returns the number of finished steps.
pub(crate) fn end_step(state: &ThreadState) -> i64 {
    STEPPED.store(true, Ordering::Relaxed);
    no_steps::step_ended();
    TRAINING_THREAD.store(thread::identifier(), Ordering::Relaxed);
    state.forward_before.set(!state.between_steps.replace(true));
    state.pass_before.set(state.pass_seen.replace(false));
    state.repeated.set(0);
    state.data_seen.set(false);
    operators::end_step(state);
    if let Some((running, waiting)) = processor::used() {
        state.write_optional(RingRecord::new(RecordKind::ProcessorTimes, 0, ticks(), running, waiting));
    }
    STEP.fetch_add(1, Ordering::SeqCst) + 1
}

/// Whether a step of the primary optimizer belongs to the training step that its step before has ended: nothing was loaded, called
/// or differentiated since, and before that all of it was seen. ZeRO of DeepSpeed has the optimizer step once for each group of
/// parameters. Where that goes on, as in a loop that has become a graph of the device, each step ends one again.
pub(super) fn belongs_to_last_step(state: &ThreadState) -> bool {
    let is_over = state.between_steps.get() && !state.data_seen.get() && !state.pass_seen.get();
    if UNIT.load(Ordering::Relaxed) != OPTIMIZER || !is_over || !state.forward_before.get() || !state.pass_before.get()
    {
        return false;
    }
    let repeated = state.repeated.get() + 1;
    state.repeated.set(repeated);
    repeated <= MAX_REPEATED
}

/// Leaves the current step without a row.
pub(super) fn leave_out_step() {
    thread::with(|state| state.instant(RingRecord::new(RecordKind::Resume, 0, ticks(), 1, 0)));
}

/// Sets [`DETAIL`] for the step that begins. Only between two steps.
pub(crate) fn apply_detail(state: &ThreadState) {
    let has_detail = policy::begin_step(STEP.load(Ordering::Relaxed));
    record_detail(state, has_detail);
    operators::begin_step(STEP.load(Ordering::Relaxed));
    module_memory::begin_step(STEP.load(Ordering::Relaxed), DETAIL.load(Ordering::Relaxed));
}

/// Records detail and layers of the step that is about to begin, if they have changed.
fn record_detail(state: &ThreadState, has_detail: bool) {
    let mut layers = policy::in_force().layers.0;
    if !pauses::are_recorded() {
        layers &= !(policy::Layer::Pauses as u16);
    }
    let captured = if policy::IS_CAPTURED.load(Ordering::Relaxed) { CAPTURED } else { 0 };
    let payload = u64::from(has_detail) | u64::from(layers) << 1 | captured;
    if RECORDED_DETAIL.load(Ordering::Relaxed) != payload {
        // Recorded first: if there is no room in the ring, detail stays as it was and the next boundary tries again.
        if state.instant(RingRecord::new(RecordKind::Detail, payload, ticks(), 0, 0)) {
            RECORDED_DETAIL.store(payload, Ordering::Relaxed);
            DETAIL.store(has_detail, Ordering::Relaxed);
            torch_callbacks::watch_nodes(has_detail && policy::is_on(policy::Layer::Backward));
        }
    }
}

/// Whether calls of modules in the current step may have been missed, if their slots are found reset now: none was seen, and in
/// the step before some were. (A function that torch.compile compiles calls none.)
pub(super) fn may_lack_forward(state: &ThreadState) -> bool {
    if STEPPED.load(Ordering::Relaxed) {
        state.between_steps.get() && state.forward_before.get()
    } else {
        TRAINING_THREAD.load(Ordering::Relaxed) == 0
    }
}

/// Whether this thread is between two steps; see [`boundary_reached`].
pub(crate) fn is_boundary(state: &ThreadState) -> bool {
    state.mode.get() == RECORD
        && thread::may_train()
        && state.is_idle()
        && (state.between_steps.get() || !STEPPED.load(Ordering::Relaxed))
}

/// Runs the snippet that waits, if this thread is between two steps. Called at points where a snippet may run.
#[inline]
pub(crate) fn check(py: Python<'_>, state: &ThreadState) {
    if BOUNDARY_WANTED.load(Ordering::Acquire) && is_boundary(state) {
        let callback = shared::lock(&BOUNDARY).as_ref().map(|callback| callback.clone_ref(py));
        if let Some(callback) = callback {
            program_errors::swallow(py, "a snippet at a step boundary", callback.call0(py).map(drop));
        }
    }
}

/// Whether the calling thread is between two steps: it is the training thread, it finished a step (or no thread ever has) and has
/// called no outermost module since, and nothing of training is open on it.
#[pyfunction]
fn boundary_reached() -> bool {
    thread::with(is_boundary)
}

/// Sets whether the step that is about to begin, and those after it, are captured. Only between two steps, on the training
/// thread.
#[pyfunction]
fn set_captured(captured: bool) {
    policy::IS_CAPTURED.store(captured, Ordering::Relaxed);
    // A capture has to know all ranges, and passes may be open on other threads.
    ranges_in_passes::update();
    // The detail of the step does not change.
    thread::with(|state| record_detail(state, DETAIL.load(Ordering::Relaxed)));
}

/// Whether nothing of training is open on the calling thread.
#[pyfunction]
fn is_idle() -> bool {
    thread::with(ThreadState::is_idle)
}

/// Sets the mode of the calling thread. Returns the mode that it had.
#[pyfunction]
fn thread_mode(mode: ThreadMode) -> ThreadMode {
    thread::with(|state| {
        let (before, mode) = (state.mode.get(), mode.0);
        if before != SUSPENDED && mode == SUSPENDED {
            SUSPENSIONS.fetch_add(1, Ordering::AcqRel);
            state.mode.set(RECORD);
            state.open(&state.suspensions, RecordKind::SuspendBegin, 0);
        }
        state.mode.set(mode);
        if before == SUSPENDED && mode != SUSPENDED {
            SUSPENSIONS.fetch_sub(1, Ordering::AcqRel);
            state.close(&state.suspensions, RecordKind::SuspendEnd, 0, 0, 0);
        }
        ThreadMode(before)
    })
}

/// `threading.get_ident()` of the training thread; 0 before there is one.
#[pyfunction]
fn training_thread() -> u64 {
    TRAINING_THREAD.load(Ordering::Relaxed)
}

/// Optimizer steps finished.
#[pyfunction]
fn step() -> i64 {
    STEP.load(Ordering::Acquire)
}

/// Sets `callback`, which is called on the training thread between two steps when a snippet waits.
#[pyfunction]
fn set_boundary_callback(callback: Option<Py<PyAny>>) {
    // The old object is dropped without a lock held, because its finalizer may run any code.
    let before = std::mem::replace(&mut *shared::lock(&BOUNDARY), callback);
    drop(before);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(boundary_reached, module)?)?;
    module.add_function(wrap_pyfunction!(is_idle, module)?)?;
    module.add_function(wrap_pyfunction!(set_captured, module)?)?;
    module.add_function(wrap_pyfunction!(thread_mode, module)?)?;
    module.add_function(wrap_pyfunction!(training_thread, module)?)?;
    module.add_function(wrap_pyfunction!(step, module)?)?;
    module.add_function(wrap_pyfunction!(set_boundary_callback, module)?)
}
