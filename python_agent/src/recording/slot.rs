//! The function in the `tp_call` slot of `torch.nn.Module` and its subclasses, which `module(x)` calls before any Python code,
//! and the classes that have it.
//!
//! Python's own `__call__` stays as it is, so hooks, `torch.compile` and subclasses with a `__call__` of their own see no
//! difference.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType, PyWeakrefMethods, PyWeakrefReference};
use pyo3::{ffi, intern};

use super::clock::ticks;
use super::forward::{enter, enter_outermost, is_loading, leave, may_call};
use super::policy::{self, Layer};
use super::thread::{self, RECORD, ThreadState};
use super::type_slot::{MODULE, ORIGINAL, original, slot_of};
use super::{
    boundary, capture, cost, exceptions, fast_call, first_use, module_names, pending_call, program_errors, shape,
};
use crate::renewable::Renewable;
use crate::shared::{self, ENABLED};
use probe_trace::record::{RecordKind, RingRecord};

/// Whether our function is kept in the slots.
static KEPT: AtomicBool = AtomicBool::new(false);
/// Whether the next call of [`put_back`] examines all classes.
static LOOK: AtomicBool = AtomicBool::new(false);

/// The classes that have had our function, by address. Weak references, because a new class may have the address of one that is
/// gone.
static PATCHED: LazyLock<Mutex<HashMap<usize, Py<PyWeakrefReference>>>> = LazyLock::new(Mutex::default);

/// Steps at whose ends the slot of `nn.Module` was found reset. torch.compile resets it in a few.
static RESET_STEPS: AtomicU32 = AtomicU32::new(0);
/// Number of such steps after which a problem is reported.
const MANY_RESETS: u32 = 64;

/// An assignment to the `__call__` of one class is noticed after this long at most; one to that of `nn.Module` at once.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Slots that have been reset for longer than this are put back by the main thread: a loop that only infers may reach none of the
/// points at which [`put_back`] is called.
const RESTORE_AFTER: Duration = Duration::from_secs(1);
/// Slots that have been reset for longer than this are reported as a problem.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Whether the main thread has been asked to put the slots back and has not come to it.
static RESTORE_ASKED: AtomicBool = AtomicBool::new(false);

/// What the background thread keeps about the slots.
struct SlotWatch {
    /// When it last ordered an examination of all classes.
    looked: Option<Instant>,
    /// Since when the slot of `nn.Module` has had the original; None while it has our function.
    reset_since: Option<Instant>,
}

static WATCH: Renewable<SlotWatch> = Renewable::new(|| SlotWatch { looked: None, reset_since: None });

/// Begins anew in a forked child that becomes an agent.
pub(super) fn begin_anew() {
    WATCH.renew();
    RESTORE_ASKED.store(false, Ordering::Relaxed);
}

/// The function in the slot: records the beginning, calls the original function, records the end. Returns what the original
/// returned, NULL with its exception included.
unsafe extern "C" fn module_call(
    module: *mut ffi::PyObject,
    args: *mut ffi::PyObject,
    kwargs: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let original = original();
    let call = || {
        // SAFETY: the interpreter called us with these arguments for the same slot.
        unsafe { original(module, args, kwargs) }
    };
    if !ENABLED.load(Ordering::Relaxed) {
        return call();
    }
    let call = || {
        // SAFETY: the interpreter called us with these arguments for the same slot.
        let call = || unsafe { fast_call::call(module, args, kwargs) }.unwrap_or_else(call);
        // SAFETY: slots are called with the GIL held, and the caller has the module.
        unsafe { capture::ranged(module, call) }
    };
    thread::with(|state| {
        if state.mode.get() != RECORD {
            return if may_call(state, module) { call() } else { std::ptr::null_mut() };
        }
        let outermost = state.depth.get() == 0;
        if outermost && is_loading(state, module) {
            return call_within_loading(state, call);
        }
        if outermost {
            enter_outermost(state, module);
        } else if !state.detail.get() {
            return call();
        }
        let recorded = (!outermost || policy::is_on(Layer::Forward)) && enter(state, module, outermost);
        if outermost && recorded {
            shape::record(state, args, kwargs);
        }
        state.depth.set(state.depth.get() + 1);
        let result = call();
        state.depth.set(state.depth.get().saturating_sub(1));
        if recorded {
            // While an exception is set, no Python may be called.
            leave(state, module as u64, !result.is_null());
        }
        if outermost && result.is_null() {
            exceptions::passing();
        } else if outermost {
            // torch.compile resets slots while it compiles code that the call reaches.
            // SAFETY: the interpreter calls slots with the GIL held.
            let py = unsafe { Python::assume_attached() };
            put_back(py, state, false);
            if recorded {
                boundary::note_call_end(py, state, module as usize);
            }
        }
        result
    })
}

/// Calls a module that is a part of loading, and records nothing of it.
fn call_within_loading(state: &ThreadState, call: impl FnOnce() -> *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls slots with the GIL held.
    let py = unsafe { Python::assume_attached() };
    first_use::happened(py);
    let result = call();
    if result.is_null() {
        exceptions::passing();
    } else {
        put_back(py, state, false);
    }
    result
}

fn ours() -> *mut c_void {
    module_call as *const () as *mut c_void
}

/// Puts our function into the slot of `class` if that has the original one. True if our function is there now.
#[pyfunction]
fn patch_type(class: &Bound<'_, PyType>) -> bool {
    let Some(slot) = slot_of(class.as_ptr()) else { return false };
    let original = ORIGINAL.load(Ordering::Relaxed);
    let _ = slot.compare_exchange(original, ours(), Ordering::AcqRel, Ordering::Acquire);
    let is_ours = slot.load(Ordering::Relaxed) == ours();
    if is_ours && let Ok(reference) = PyWeakrefReference::new(class) {
        let before = shared::lock(&PATCHED).insert(class.as_ptr() as usize, reference.unbind());
        drop(before);
    }
    is_ours
}

/// Whether `class` has had our function before. A class that is gone and had the same address does not count.
fn was_patched(class: &Bound<'_, PyType>) -> bool {
    let patched = shared::lock(&PATCHED);
    let reference = patched.get(&(class.as_ptr() as usize));
    reference.is_some_and(|reference| reference.bind(class.py()).upgrade().is_some_and(|living| living.is(class)))
}

/// Puts the original function back into the slot of `class`.
#[pyfunction]
fn unpatch_type(class: &Bound<'_, PyType>) {
    if let Some(slot) = slot_of(class.as_ptr()) {
        let original = ORIGINAL.load(Ordering::Relaxed);
        let _ = slot.compare_exchange(ours(), original, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Whether `class` has our function.
#[pyfunction]
fn is_patched(class: &Bound<'_, PyType>) -> bool {
    slot_of(class.as_ptr()).is_some_and(|slot| slot.load(Ordering::Relaxed) == ours())
}

/// Sets whether our function is kept in the slots when the original is put back by other code. With True, also orders an
/// examination of all classes.
#[pyfunction]
fn keep_slots(on: bool) {
    KEPT.store(on, Ordering::Relaxed);
    LOOK.store(on, Ordering::Relaxed);
}

/// Whether other code has put the original back, as assigning `nn.Module.__call__` does for all subclasses.
#[inline]
fn was_reset() -> bool {
    slot_of(MODULE.load(Ordering::Relaxed)).is_some_and(|slot| slot.load(Ordering::Relaxed) != ours())
}

/// Puts our function back into slots that have lost it. Called at points that a loop reaches whether or not its modules are seen,
/// the end of a step and the request for a batch, and after torch.compile may have compiled. `is_missed`: module calls since the
/// step began may have been missed; the step then gets no row.
#[inline]
pub(super) fn put_back(py: Python<'_>, state: &ThreadState, is_missed: bool) {
    if KEPT.load(Ordering::Relaxed) && (LOOK.load(Ordering::Relaxed) || was_reset()) {
        put_back_now(py, state, is_missed);
    }
}

/// [`put_back`] at the end of a step.
#[inline]
pub(super) fn put_back_at_end(py: Python<'_>, state: &ThreadState, is_missed: bool) {
    if KEPT.load(Ordering::Relaxed) && was_reset() && RESET_STEPS.fetch_add(1, Ordering::Relaxed) + 1 == MANY_RESETS {
        *shared::lock(&shared::PROBLEM) = RESETS.to_owned();
    }
    put_back(py, state, is_missed);
}

#[cold]
fn put_back_now(py: Python<'_>, state: &ThreadState, is_missed: bool) {
    let began = ticks();
    LOOK.store(false, Ordering::Relaxed);
    let was_reset = was_reset();
    let mut found = None;
    let looked = patch_below(py, &mut found);
    if found.is_some() && is_missed {
        state.instant(RingRecord::new(RecordKind::Resume, 0, ticks(), 1, 0));
    }
    // An assignment to `nn.Module` is noticed at the end of the step in which it happens, and needs no report where it is rare.
    if let Some(class) = found.filter(|_| !was_reset) {
        *shared::lock(&shared::PROBLEM) = format!(
            "forward: the program assigned {class}.__call__: its calls were not recorded, for {} s at most",
            LOOK_EVERY.as_secs()
        );
    }
    program_errors::swallow(py, "the slots of modules", looked);
    cost::add_rare(began);
}

/// Patches every class below `nn.Module` that has the original in its slot. `found` becomes the name of one that had lost our
/// function. Runs no Python code, so that no signal handler raises in here.
fn patch_below(py: Python<'_>, found: &mut Option<String>) -> PyResult<()> {
    let module = MODULE.load(Ordering::Relaxed);
    if module.is_null() {
        return Ok(());
    }
    // SAFETY: `nn.Module`, kept alive.
    let module = unsafe { Bound::from_borrowed_ptr(py, module) }.cast_into::<PyType>()?;
    let subclasses = py.get_type::<PyType>().getattr(intern!(py, "__subclasses__"))?;
    let mut seen = std::collections::HashSet::new();
    let mut waiting = vec![module];
    while let Some(class) = waiting.pop() {
        if !seen.insert(class.as_ptr() as usize) {
            continue;
        }
        if !is_patched(&class) {
            let was_patched = was_patched(&class);
            if !patch_type(&class) {
                // It has a `tp_call` of its own.
            } else if !was_patched {
                // It is new, and its own `__init_subclass__` did not call on.
                module_names::name_type(&class)?;
            } else if found.is_none() && !is_traced(&class) {
                *found = Some(class.name()?.extract()?);
            }
        }
        for below in subclasses.call1((&class,))?.cast::<PyList>()? {
            waiting.push(below.cast_into::<PyType>()?);
        }
    }
    Ok(())
}

/// Whether it is a class of torch.fx, which makes one for each graph and assigns its `__call__`, as torch.compile often has it
/// do: that is no assignment of the program, and no call of the program is missed.
fn is_traced(class: &Bound<'_, PyType>) -> bool {
    let py = class.py();
    let find = || {
        let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
        let module = modules.cast::<PyDict>()?.get_item(intern!(py, "torch.fx.graph_module"))?;
        module.map(|module| module.getattr(intern!(py, "GraphModule"))).transpose()
    };
    // SAFETY: both are types, and the check runs no code of theirs.
    let is_below = |base: &Bound<'_, PyType>| unsafe { ffi::PyType_IsSubtype(class.as_type_ptr(), base.as_type_ptr()) };
    find().ok().flatten().is_some_and(|found| found.cast::<PyType>().is_ok_and(|base| is_below(base) != 0))
}

/// Orders an examination of all classes from time to time, and reports when calls of modules are not seen. For the background
/// thread.
pub(super) fn watch() {
    if !KEPT.load(Ordering::Relaxed) {
        return;
    }
    let now = Instant::now();
    let mut watch = WATCH.lock();
    if now.duration_since(*watch.looked.get_or_insert(now)) > LOOK_EVERY {
        watch.looked = Some(now);
        LOOK.store(true, Ordering::Relaxed);
    }
    if !was_reset() {
        watch.reset_since = None;
        return;
    }
    let since = now.duration_since(*watch.reset_since.get_or_insert(now));
    if since > TIMEOUT {
        *shared::lock(&shared::PROBLEM) = NOT_SEEN.to_owned();
    }
    if since > RESTORE_AFTER && !RESTORE_ASKED.swap(true, Ordering::Relaxed) && !pending_call::on_main_thread(restore) {
        RESTORE_ASKED.store(false, Ordering::Relaxed);
    }
}

/// Puts our function back, on the main thread, where that is between the calls of a loop: what is within one does it at its end,
/// and torch.compile may be tracing in it.
fn restore(py: Python<'_>) -> PyResult<()> {
    RESTORE_ASKED.store(false, Ordering::Relaxed);
    if ENABLED.load(Ordering::Relaxed) && !is_call_wrapped(py) {
        thread::with(|state| {
            if state.is_idle() {
                put_back(py, state, boundary::may_lack_forward(state));
            }
        });
    }
    Ok(())
}

/// Whether something has its own function as `nn.Module.__call__` now, as torch.fx has while it traces: calls of modules are not
/// the program's then.
fn is_call_wrapped(py: Python<'_>) -> bool {
    let module = MODULE.load(Ordering::Relaxed);
    if module.is_null() {
        return false;
    }
    // SAFETY: `nn.Module`, kept alive.
    let module = unsafe { Bound::from_borrowed_ptr(py, module) };
    let call = module.getattr(intern!(py, "__call__"));
    call.and_then(|call| call.hasattr(intern!(py, "__wrapped__"))).unwrap_or(true)
}

/// The problem that is reported when slots are reset in many steps.
const RESETS: &str = "forward: nn.Module.__call__ is assigned again and again while it trains, by the program or by torch.fx: calls of \
    modules in such steps are not seen; hooks see them, too";

/// The problem that is reported when slots are reset and no point is reached at which they could be put back.
const NOT_SEEN: &str = "forward: the program has assigned nn.Module.__call__ (torch.fx does), so calls of modules are not seen \
    until the main thread runs Python code again outside of a module's call";

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(patch_type, module)?)?;
    module.add_function(wrap_pyfunction!(unpatch_type, module)?)?;
    module.add_function(wrap_pyfunction!(is_patched, module)?)?;
    module.add_function(wrap_pyfunction!(keep_slots, module)?)
}
