//! Names by address: modules, their types, process groups. Python adds them when an outermost module is called for the first
//! time, and the background thread reads them. The hot path takes no lock of this file.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::clock::ticks;
use super::libtorch::HiddenFromModes;
use super::thread::ThreadState;
use super::untraced::Untraced;
use super::{cost, program_errors, shared_memory};
use crate::shared;
use probe_trace::symbol_lookup::ModuleInfo;
use probe_trace::symbol_table::{KnownModule, LearnedName};

#[derive(Debug, Default)]
pub(super) struct ModuleRegistry {
    pub(super) modules: HashMap<u64, Vec<KnownModule>>,
    pub(super) types: HashMap<u64, Arc<str>>,
    /// Addresses that have an entry of a module that is gone.
    pub(super) past: Vec<u64>,
}

pub(super) static REGISTRY: LazyLock<Mutex<ModuleRegistry>> = LazyLock::new(Mutex::default);
/// Grows whenever the name of a module may have changed.
pub(super) static GENERATION: AtomicU64 = AtomicU64::new(1);
/// Grows when a module is gone, so that another one at its address is not taken for known.
static ROOTS_GENERATION: AtomicU64 = AtomicU64::new(1);
/// Address of an outermost module within which an unknown module was called: it is walked again at its next call. 0: none.
pub(super) static WALK_AGAIN: AtomicU64 = AtomicU64::new(0);
pub(super) static WALKER: Mutex<Option<Py<PyAny>>> = Mutex::new(None);
static HAS_WALKER: AtomicBool = AtomicBool::new(false);

/// Makes sure that `module`, which is about to be called as an outermost one, has been walked.
#[inline]
pub(super) fn know_root(py: Python<'_>, state: &ThreadState, module: *mut ffi::PyObject) {
    let generation = ROOTS_GENERATION.load(Ordering::Acquire);
    if state.roots_generation.get() != generation {
        state.roots_generation.set(generation);
        state.roots.iter().for_each(|root| root.set(0));
    }
    let address = module as usize;
    let number = (address >> 6 ^ address >> 12) % state.roots.len();
    let root = &state.roots[number];
    let again = WALK_AGAIN.load(Ordering::Relaxed) == address as u64;
    let is_new = root.get() != address;
    // A module without parameters may have made its layers in its first call.
    let maybe_unbuilt = !is_new && bit(&state.roots_maybe_unbuilt, number);
    if is_new || again || maybe_unbuilt {
        state.know_torch_thread();
        // A module that was not walked gives no notice when it is freed, so another module may have its address now.
        let (is_known, has_parameters) = walk(py, module, again);
        root.set(if is_known { address } else { 0 });
        set_bit(&state.roots_with_parameters, number, has_parameters);
        set_bit(&state.roots_maybe_unbuilt, number, is_new && !has_parameters);
    }
    state.root_has_parameters.set(bit(&state.roots_with_parameters, number));
}

fn bit(bits: &Cell<u8>, number: usize) -> bool {
    bits.get() >> number & 1 == 1
}

fn set_bit(bits: &Cell<u8>, number: usize, is_set: bool) {
    bits.set(bits.get() & !(1 << number) | u8::from(is_set) << number);
}

/// Whether `module` was called as an outermost one lately, by this thread.
pub(super) fn is_known_root(state: &ThreadState, module: *mut ffi::PyObject) -> bool {
    state.roots_generation.get() == ROOTS_GENERATION.load(Ordering::Acquire)
        && state.roots.iter().any(|root| root.get() == module as usize)
}

/// Walks `module`. Returns whether it is known now, and will report when it is freed; and whether it has parameters.
#[cold]
fn walk(py: Python<'_>, module: *mut ffi::PyObject, again: bool) -> (bool, bool) {
    if again {
        WALK_AGAIN.store(0, Ordering::Relaxed);
    }
    if !HAS_WALKER.load(Ordering::Relaxed) {
        return (true, false);
    }
    let walker = shared::lock(&WALKER).as_ref().map(|walker| walker.clone_ref(py));
    let Some(walker) = walker else { return (true, false) };
    // SAFETY: the object of a running call.
    let module = unsafe { Bound::from_borrowed_ptr(py, module) };
    let began = ticks();
    let (_hidden, _untraced) = (HiddenFromModes::new(), Untraced::new(py));
    let known = walker.call1(py, (module, again)).and_then(|known| known.extract::<(bool, bool)>(py));
    if again {
        // The analysis, which requested the walk, learns that no more names are to be found.
        GENERATION.fetch_add(1, Ordering::Release);
    }
    // A walk before the first step has ended is no cost of steps.
    if shared::STEP.load(Ordering::Relaxed) > 0 {
        cost::add_rare(began);
    }
    let is_known = known.as_ref().ok().copied();
    let is_ours = program_errors::swallow(py, "finding the names of modules", known.map(drop));
    // A module that can't be walked is not tried again at each of its calls. One whose walk the program interrupted is.
    is_known.unwrap_or((is_ours, false))
}

/// Sets `walker(root, again)`, which is called when `root` is called as an outermost module for the first time, when a root that had
/// no parameters is called for the second time, and (`again`) when modules within it have turned out to be unknown. It returns whether
/// it knows `root` now, and whether that has parameters.
#[pyfunction]
fn set_walker(walker: Option<Py<PyAny>>) {
    HAS_WALKER.store(walker.is_some(), Ordering::Relaxed);
    // The old object is dropped without a lock held, because its finalizer may run any code.
    let before = std::mem::replace(&mut *shared::lock(&WALKER), walker);
    drop(before);
}

/// A module as Python's walk describes it: address, qualified name (None: a root or wrapper, shown by its class name),
/// class name, device, compiled, has parameters.
type DescribedModule = (u64, Option<String>, String, Option<String>, bool, bool);

/// Adds the names of modules.
#[pyfunction]
fn name_modules(modules: Vec<DescribedModule>) {
    let mut registry = shared::lock(&REGISTRY);
    let ModuleRegistry { modules: known, past, .. } = &mut *registry;
    let now = ticks();
    for (address, name, class, device, compiled, has_parameters) in modules {
        let class: Arc<str> = class.into();
        let name = name.map_or_else(|| Arc::clone(&class), Arc::from);
        let info = Arc::new(ModuleInfo { name, class, device: device.map(Arc::from), compiled, has_parameters });
        let entries = known.entry(address).or_default();
        match entries.last_mut().filter(|entry| entry.until > now) {
            // The same module has a better name, which then also holds for what it did before.
            Some(entry) if entry.info.has_parameters == has_parameters => entry.info = info,
            before => {
                // A module that has got parameters since its entry was made counts as a model from now on, and not for its earlier calls.
                if let Some(before) = before {
                    end_entry(before, address, now, past);
                }
                entries.push(KnownModule { since: now, until: u64::MAX, info });
            }
        }
        if let Some(entry) = entries.last() {
            shared_memory::log(&LearnedName::Module(address, entry));
        }
    }
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Ends an entry of the module at `address`: it does not hold from `now` on.
fn end_entry(entry: &mut KnownModule, address: u64, now: u64, past: &mut Vec<u64>) {
    entry.until = entry.until.min(now);
    past.push(address);
    shared_memory::log(&LearnedName::Gone(address, now));
}

/// Notes that the module at `address` is gone.
#[pyfunction]
fn forget_module(address: u64) {
    let mut registry = shared::lock(&REGISTRY);
    let ModuleRegistry { modules, past, .. } = &mut *registry;
    if let Some(entry) = modules.get_mut(&address).and_then(|entries| entries.last_mut()) {
        end_entry(entry, address, ticks(), past);
    }
    GENERATION.fetch_add(1, Ordering::Release);
    ROOTS_GENERATION.fetch_add(1, Ordering::Release);
}

/// Remembers the class name of a module type, for modules that no walk finds.
#[pyfunction]
pub(super) fn name_type(class: &Bound<'_, PyType>) -> PyResult<()> {
    // `to_string` runs the handlers of pending signals, and what one raises would be lost.
    let name: Arc<str> = class.name()?.to_string_lossy().into();
    let address = class.as_ptr() as u64;
    let before = shared::lock(&REGISTRY).types.insert(address, Arc::clone(&name));
    if before.as_ref() != Some(&name) {
        learned(&LearnedName::Class(address, &name));
    }
    Ok(())
}

/// Grows when anything other than a module gets a name.
pub(super) static LEARNED: AtomicU64 = AtomicU64::new(0);

/// Notes that something other than a module has a name now.
pub(super) fn learned(what: &LearnedName<'_>) {
    shared_memory::log(what);
    LEARNED.fetch_add(1, Ordering::Release);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_walker, module)?)?;
    module.add_function(wrap_pyfunction!(name_modules, module)?)?;
    module.add_function(wrap_pyfunction!(forget_module, module)?)?;
    module.add_function(wrap_pyfunction!(name_type, module)?)
}
