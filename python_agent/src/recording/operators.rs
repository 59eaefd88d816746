//! Copies of tensors, the lines at which the host reads what tensors hold, and how often operators run: a RecordFunction callback
//! of all operators, in one of many steps only, because torch's call of it is expensive (it boxes every operator's arguments).
//!
//! For the operators in `OPERATORS`, torch's C shim describes the tensors, and the innermost line of the program's own code is
//! looked up (`user_line`), which takes the GIL on threads that are Python's. All are counted (`operator_counts`).

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::calibration;
use super::clock::ticks;
use super::libtorch::name_of;
use super::operator_counts;
use super::policy::{Layer, is_on};
use super::sampled_steps::SampledSteps;
use super::shim::{self, ShimTensor};
use super::thread::{self, RECORD, SUSPENSIONS, ThreadState};
use super::torch_callbacks::OPERATOR_CALLBACK;
use super::user_line;
use crate::shared::{self, ENABLED};
use probe_trace::payload::{CONVERTED, IS_CONTIGUOUS, NON_BLOCKING, OPERATORS, SOME_CUDA, SYNCHRONIZE};
use probe_trace::record::{RecordKind, RingRecord};

/// The steps in which operators are watched, as [`SampledSteps::new`] takes it: late enough to come after a program's first
/// steps, and soon enough for a short run.
const REMAINDER: u32 = 10;
/// The stride of the first steps, where watching is cheap: a run of a hundred steps has several watched ones.
const FIRST_STRIDE: u32 = 16;
/// Operators in `OPERATORS` that may be open on a thread.
const MAX_OPEN: usize = 8;
const COPY: u8 = 0;
const SCALAR: u8 = 1;
const NONZERO: u8 = 8;

const CUDA: u64 = 1;

static COPIES: AtomicBool = AtomicBool::new(false);
static SYNC_POINTS: AtomicBool = AtomicBool::new(false);
/// Whether one of the two tables is recorded.
static IS_USED: AtomicBool = AtomicBool::new(false);
static WATCH: SampledSteps = SampledSteps::new(REMAINDER, FIRST_STRIDE);
/// Ticks that torch takes to call the callback and to return.
static WAY: AtomicU64 = AtomicU64::new(0);

/// Offset in bytes of the inputs in a RecordFunction.
static INPUTS: AtomicUsize = AtomicUsize::new(0);
/// The tag behind the pointer of an IValue that is a tensor.
static TENSOR_TAG: AtomicU32 = AtomicU32::new(0);

/// An operator in `OPERATORS` that is open on its thread.
#[derive(Debug, Clone, Copy)]
struct OpenOperator {
    range: u64,
    operator: u8,
    begin: u64,
    /// Payload and words of its record; None where no record is made of it, but operators within it are named after it.
    contents: Option<(u64, u64)>,
}

struct OperatorStack {
    open: [Cell<OpenOperator>; MAX_OPEN],
    count: Cell<usize>,
}

thread_local! {
    static STACK: OperatorStack = const {
        OperatorStack {
            open: [const { Cell::new(OpenOperator { range: 0, operator: 0, begin: 0, contents: None }) }; MAX_OPEN],
            count: Cell::new(0),
        }
    };
}

fn is_wanted() -> bool {
    COPIES.load(Ordering::Relaxed) && is_on(Layer::Copies)
        || SYNC_POINTS.load(Ordering::Relaxed) && is_on(Layer::SyncPoints)
}

/// Begins or ends watching operators. Called at the beginning of step `step`.
pub(super) fn begin_step(step: i64) {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    if let Some(on) = WATCH.begin_step(step, is_wanted()) {
        if on {
            operator_counts::forget();
        }
        switch(on);
    }
}

/// Begins anew in a forked child that becomes an agent.
pub(super) fn begin_anew() {
    if WATCH.forget() {
        switch(false);
    }
}

/// Records how often operators ran, if the step that ends is a watched one.
pub(super) fn end_step(state: &ThreadState) {
    if WATCH.is_on() {
        operator_counts::end_step(state, WATCH.stride());
    }
}

fn switch(on: bool) {
    if on {
        OPERATOR_CALLBACK.put_in();
    } else {
        OPERATOR_CALLBACK.take_out();
    }
}

/// What watching operators costs a step, in ticks, spread over those that are not watched.
pub(super) fn cost() -> u64 {
    WATCH.cost(is_wanted())
}

unsafe extern "C" fn start(context: *mut *mut c_void, range: *const u8) -> *mut *mut c_void {
    // SAFETY: `context` is the memory for the returned unique_ptr.
    unsafe { *context = std::ptr::null_mut() };
    if !WATCH.is_on() || !ENABLED.load(Ordering::Relaxed) {
        return context;
    }
    let called = ticks();
    // SAFETY: torch gave us `range`.
    let Some(name) = (unsafe { name_of(range) }) else { return context };
    thread::with(|state| {
        if state.mode.get() != RECORD || SUSPENSIONS.load(Ordering::Relaxed) > 0 {
            return;
        }
        let name = name.to_bytes();
        let is_known = |known: &&str| name.strip_prefix(b"aten::") == Some(known.as_bytes());
        if let Some(operator) = OPERATORS[..SYNCHRONIZE].iter().position(is_known) {
            // SAFETY: as above.
            unsafe { open(range, operator as u8) };
        }
        operator_counts::begin(state, range as u64, name, called);
    });
    WATCH.spend(WAY.load(Ordering::Relaxed) + ticks().saturating_sub(called));
    context
}

unsafe fn open(range: *const u8, operator: u8) {
    let contents = match operator {
        // SAFETY: as of the caller.
        COPY => unsafe { copy_of(range) },
        // SAFETY: as of the caller.
        SCALAR | NONZERO => unsafe { reads(range) },
        _ => None,
    };
    STACK.with(|stack| {
        let count = stack.count.get();
        if count < MAX_OPEN {
            stack.open[count].set(OpenOperator { range: range as u64, operator, begin: ticks(), contents });
            stack.count.set(count + 1);
        }
    });
}

unsafe extern "C" fn end(range: *const u8, _context: *mut c_void) {
    let now = ticks();
    record_end(range, now);
    operator_counts::end(range as u64, now, WAY.load(Ordering::Relaxed));
    WATCH.spend(ticks().saturating_sub(now));
}

/// Records the copy or read that has ended `now`.
fn record_end(range: *const u8, now: u64) {
    let ended = STACK.with(|stack| {
        let count = stack.count.get();
        let open = stack.open.get(count.wrapping_sub(1))?.get();
        if open.range != range as u64 {
            return None;
        }
        stack.count.set(count - 1);
        Some((open, stack.open[0].get().operator))
    });
    let Some((OpenOperator { operator, begin, contents: Some((payload, words)), .. }, outermost)) = ended else {
        return;
    };
    let outermost = u64::from(if operator == NONZERO { NONZERO } else { outermost });
    let payload = payload | outermost | u64::from(WATCH.stride()) << 24;
    thread::with(|state| {
        if !ENABLED.load(Ordering::Relaxed) {
            return;
        }
        let record = |kind| RingRecord::new(kind, payload, now, begin, words);
        if operator == COPY && COPIES.load(Ordering::Relaxed) && is_on(Layer::Copies) {
            state.instant(record(RecordKind::Copy));
        }
        let to_host = operator != COPY || words >> 56 == 0 && words >> 48 & 0xff != 0 && payload & NON_BLOCKING == 0;
        if to_host && SYNC_POINTS.load(Ordering::Relaxed) && is_on(Layer::SyncPoints) {
            state.instant(record(RecordKind::Sync));
        }
    });
}

/// Returns the time in ticks at which the program begins to wait for a device; 0 where that is not recorded.
#[pyfunction]
fn sync_begin() -> u64 {
    let watched = WATCH.is_on()
        && ENABLED.load(Ordering::Relaxed)
        && SYNC_POINTS.load(Ordering::Relaxed)
        && is_on(Layer::SyncPoints)
        && SUSPENSIONS.load(Ordering::Relaxed) == 0
        && thread::with(|state| state.mode.get()) == RECORD;
    if watched { ticks() } else { 0 }
}

/// Records that the program has waited for a device since `began`. `device()` returns the index of the CUDA device; an error
/// means that it is not known.
#[pyfunction]
fn sync_end(began: u64, operation: &str, device: &Bound<'_, PyAny>) {
    let now = ticks();
    let Some(operation) = OPERATORS.iter().position(|known| *known == operation) else { return };
    let device = match device.call0().and_then(|index| index.extract::<u64>()) {
        Ok(index) => CUDA << 4 | index.min(14),
        Err(_) => u64::from(SOME_CUDA),
    };
    let payload = operation as u64 | user_line::id() << 8 | u64::from(WATCH.stride()) << 24;
    thread::with(|state| state.instant(RingRecord::new(RecordKind::Sync, payload, now, began, device << 48)));
    WATCH.spend(ticks().saturating_sub(now));
}

/// The tensor at `index` of a RecordFunction's inputs; None where torch does not tell.
unsafe fn input(range: *const u8, index: usize) -> Option<ShimTensor> {
    // SAFETY: calibration saw an ArrayRef of IValues there: pointer and length; an IValue is 16 bytes, the tensor's
    // pointer and a tag.
    unsafe {
        let field = range.add(INPUTS.load(Ordering::Relaxed));
        let (first, length) = (field.cast::<*const u8>().read(), field.add(8).cast::<usize>().read());
        if first.is_null() || length <= index {
            return None;
        }
        let value = first.add(16 * index);
        if value.add(8).cast::<u32>().read() != TENSOR_TAG.load(Ordering::Relaxed) {
            return None;
        }
        ShimTensor::of(value)
    }
}

/// `copy_(self, src, non_blocking)`: payload and words of its record.
unsafe fn copy_of(range: *const u8) -> Option<(u64, u64)> {
    // SAFETY: as of the caller.
    let (to, from) = unsafe { (input(range, 0)?, input(range, 1)?) };
    // SAFETY: calibration saw the inputs there, and there are two of them at least.
    let non_blocking = unsafe {
        let field = range.add(INPUTS.load(Ordering::Relaxed));
        let (first, length) = (field.cast::<*const u8>().read(), field.add(8).cast::<usize>().read());
        length > 2 && first.add(32).cast::<u8>().read() == 1
    };
    let flag = |is: bool, bit: u64| if is { bit } else { 0 };
    let payload = flag(non_blocking, NON_BLOCKING)
        | flag(to.contiguous && from.contiguous, IS_CONTIGUOUS)
        | flag(to.dtype != from.dtype, CONVERTED)
        | user_line::id() << 8;
    let bytes = to.bytes as u64 & 0xffff_ffff_ffff;
    Some((payload, bytes | u64::from(from.device) << 48 | u64::from(to.device) << 56))
}

unsafe fn reads(range: *const u8) -> Option<(u64, u64)> {
    // SAFETY: as of the caller.
    let tensor = unsafe { input(range, 0)? };
    Some((user_line::id() << 8, u64::from(tensor.device) << 48))
}

/// Finds the inputs' field of a RecordFunction and the functions of the shim; see [`calibration::find_inputs`].
#[pyfunction]
fn calibrate_operators(copy: &Bound<'_, PyAny>) -> PyResult<()> {
    shim::find()
        .map_err(|name| PyRuntimeError::new_err(format!("libtorch_cpu.so lacks {}", name.to_string_lossy())))?;
    let (inputs, tag) = calibration::find_inputs(copy)?;
    INPUTS.store(inputs, Ordering::Relaxed);
    TENSOR_TAG.store(tag, Ordering::Relaxed);
    Ok(())
}

/// Sets which of the two tables are recorded. After [`calibrate_operators`]. `libraries`: directories of files that are not the
/// program's own code.
#[pyfunction]
fn use_operators(copies: Option<bool>, sync_points: Option<bool>, libraries: Option<Vec<String>>) -> PyResult<()> {
    if let Some(libraries) = libraries {
        user_line::set_libraries(libraries);
    }
    copies.into_iter().for_each(|on| COPIES.store(on, Ordering::Relaxed));
    sync_points.into_iter().for_each(|on| SYNC_POINTS.store(on, Ordering::Relaxed));
    let wanted = COPIES.load(Ordering::Relaxed) || SYNC_POINTS.load(Ordering::Relaxed);
    if wanted && INPUTS.load(Ordering::Relaxed) == 0 {
        return Err(PyRuntimeError::new_err("the inputs of RecordFunction have not been found"));
    }
    if wanted {
        OPERATOR_CALLBACK.prepare(start as *const c_void, end as *const c_void)?;
    }
    IS_USED.store(wanted, Ordering::Relaxed);
    if !wanted {
        WATCH.stop();
        OPERATOR_CALLBACK.take_out();
    }
    Ok(())
}

/// Sets the ticks that torch takes to call the callback, as [`super::cost_measurement`] measures them.
pub(super) fn set_way(ticks: u64) {
    WAY.store(ticks, Ordering::Relaxed);
}

/// Watches operators in the next `steps` steps.
pub(crate) fn watch(steps: u32) {
    WATCH.next(steps);
}

/// For tests: begins or ends watching operators now, as the beginning of a step does.
#[pyfunction]
fn watch_operators(on: bool) {
    if IS_USED.load(Ordering::Relaxed) && WATCH.force(on, shared::STEP.load(Ordering::Relaxed)) {
        switch(on);
    }
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(calibrate_operators, module)?)?;
    module.add_function(wrap_pyfunction!(use_operators, module)?)?;
    module.add_function(wrap_pyfunction!(sync_begin, module)?)?;
    module.add_function(wrap_pyfunction!(sync_end, module)?)?;
    module.add_function(wrap_pyfunction!(watch_operators, module)?)
}
