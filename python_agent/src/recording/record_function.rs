//! torch's RecordFunction callbacks: autograd nodes, optimizer steps, and gloo's completion of collectives.
//!
//! The functions are C++ symbols of libtorch_cpu.so that no header promises to keep, found with `dlsym`. So: only for
//! torch versions on the Python side's list, only on x86-64 (how a small C++ object is returned differs elsewhere), and
//! only when the calibration of the one private field, the sequence number, gives exactly one answer.
//! The callback of ranges is added once and removed when the agent is taken out; [`ENABLED`](crate::shared::ENABLED) makes it
//! pass. Those of nodes and operators are there only in steps that have them ([`Occasional`]).

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::boundary::{DETAIL, SUSPENSIONS};
use super::clock::ticks;
use super::thread::{self, RECORD, TESTING};
use super::{completion, cost, device, optimizer, profiled_ranges, spans};
use crate::shared::{ENABLED, TRAINING_THREAD};
use probe_trace::record::{Kind, Record, RecordTable};

const SCOPES: usize = 10;
const FUNCTION: usize = 0;
const BACKWARD_FUNCTION: usize = 1;
const USER_SCOPE: usize = 7;

/// `at::RecordFunctionCallback` of torch 2.5 to 2.15, as tests/torch_layout.cpp compares it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Callback {
    start: *const c_void,
    end: *const c_void,
    probability: f64,
    scopes: [bool; SCOPES],
    needs_inputs: bool,
    needs_outputs: bool,
    needs_ids: bool,
}

static PEEK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static NAME: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static CURRENT_THREAD: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// `at::addGlobalCallback` and `at::removeCallback`; null before they were found.
static ADD: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static REMOVE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Where a RecordFunction keeps its sequence number, in bytes; 0: not known.
static SEQUENCE: AtomicUsize = AtomicUsize::new(0);
/// Where one of an autograd node keeps the number of the thread that made the node; sequence numbers are counted on each.
static MADE_ON: AtomicUsize = AtomicUsize::new(0);
/// Handle of the callback of ranges; 0: it is not there.
static RANGES: AtomicU64 = AtomicU64::new(0);
/// That of nodes.
static NODE_CALLBACK: Occasional = Occasional::new();
/// Whether nodes are recorded by these callbacks (not by the fallback, nor off).
pub(super) static NODES: AtomicBool = AtomicBool::new(false);
/// Whether optimizer steps are.
pub(super) static OPTIMIZERS: AtomicBool = AtomicBool::new(false);
/// Whether the callback of nodes is there: in steps without detail torch takes none of the ways to it, which cost more than
/// what we do there.
pub(super) static WATCHED: AtomicBool = AtomicBool::new(true);
/// Calls of `backward()` that are open, on all threads.
pub(super) static PASSES: AtomicU32 = AtomicU32::new(0);
/// Whether a node has ever been seen.
pub(super) static NODE_SEEN: AtomicBool = AtomicBool::new(false);
/// First and last node of the pass that is open, on threads that autograd owns (device threads); 0: none.
pub(super) static FIRST_ELSEWHERE: AtomicU64 = AtomicU64::new(0);
/// See there.
pub(super) static LAST_ELSEWHERE: AtomicU64 = AtomicU64::new(0);

/// The autograd sequence number that this thread gives out next; 0 where torch does not say.
#[inline(always)]
pub(super) fn peek() -> u64 {
    let function = PEEK.load(Ordering::Relaxed);
    if function.is_null() {
        return 0;
    }
    // SAFETY: `at::sequence_number::peek()`, stored by `find` only; it reads a thread-local number.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(function)() }
}

/// Torch's number of the calling thread, by which autograd nodes say who made them; 0 where torch does not say.
pub(super) fn current_thread() -> u64 {
    let function = CURRENT_THREAD.load(Ordering::Relaxed);
    if function.is_null() {
        return 0;
    }
    // SAFETY: `at::RecordFunction::currentThreadId()`, stored by `find` only; it reads a thread-local number.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(function)() }
}

/// The range's name; None where it has none.
pub(super) unsafe fn name_of<'a>(range: *const u8) -> Option<&'a CStr> {
    let function = NAME.load(Ordering::Relaxed);
    if function.is_null() {
        return None;
    }
    // SAFETY: `at::RecordFunction::name() const` on the object that a callback was given.
    unsafe {
        let name =
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const u8) -> *const c_char>(function)(range);
        (!name.is_null()).then(|| CStr::from_ptr(name))
    }
}

unsafe extern "C" fn node_start(context: *mut *mut c_void, range: *const u8) -> *mut *mut c_void {
    // SAFETY: the place for the returned unique_ptr, and a RecordFunction, whose fields are where calibration saw them.
    let (sequence, made_on) = unsafe {
        *context = std::ptr::null_mut();
        let field = |offset: &AtomicUsize| range.add(offset.load(Ordering::Relaxed)).cast::<u64>().read();
        (field(&SEQUENCE), field(&MADE_ON))
    };
    thread::with(|state| {
        let outermost = state.nodes.depth() == 0;
        state.nodes.open(|| {
            if !NODES.load(Ordering::Relaxed) || !ENABLED.load(Ordering::Relaxed) || state.mode.get() != RECORD {
                return false;
            }
            if SUSPENSIONS.load(Ordering::Relaxed) != 0 {
                return false;
            }
            let now = ticks();
            if outermost {
                NODE_SEEN.store(true, Ordering::Relaxed);
                if state.backward.depth() == 0 {
                    let _ = FIRST_ELSEWHERE.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
                } else if state.first_node.get() == 0 {
                    state.first_node.set(now);
                }
            }
            if !DETAIL.load(Ordering::Relaxed) {
                return false;
            }
            // What sums a gradient up has no number, and goes with the node before it up to its end.
            let mark = device::mark_if(outermost && sequence != u64::MAX);
            let begun = state
                .begin(RecordTable::TorchTrace, Record::new(Kind::NodeStart, 0, now, sequence, made_on).marked(mark));
            if !begun {
                device::take_back(mark);
            }
            begun
        });
    });
    context
}

unsafe extern "C" fn node_end(_range: *const u8, _context: *mut c_void) {
    thread::with(|state| {
        let recorded = state.nodes.close();
        let outermost = state.nodes.depth() == 0;
        if !recorded && !outermost {
            return;
        }
        let now = ticks();
        if outermost {
            if state.backward.depth() > 0 {
                state.last_node.set(now);
            } else {
                LAST_ELSEWHERE.fetch_max(now, Ordering::Relaxed);
            }
        }
        if recorded {
            state.end(Record::new(Kind::NodeEnd, 0, now, 0, 0).marked(device::mark_if(outermost)));
        }
    });
}

/// User ranges that mean something to us.
enum Range<'a> {
    Optimizer(&'a [u8]),
    Gloo,
    Test,
    Named(&'a [u8]),
    Other,
}

unsafe fn range_of<'a>(range: *const u8) -> Range<'a> {
    // SAFETY: as of the caller.
    let Some(name) = (unsafe { name_of(range) }) else { return Range::Other };
    let name = name.to_bytes();
    if let Some(class) = name.strip_prefix(b"Optimizer.step#") {
        Range::Optimizer(class.strip_suffix(b".step").unwrap_or(class))
    } else if name.starts_with(b"gloo:") {
        Range::Gloo
    } else if name == TEST_RANGE {
        Range::Test
    } else {
        Range::Named(name)
    }
}

/// Whether it is a process group's, which may end it on a thread of its own.
fn is_of_collective(range: &Range<'_>) -> bool {
    match range {
        Range::Gloo => true,
        Range::Named(name) => [&b"nccl:"[..], b"mpi:", b"ucc:", b"xccl:"].iter().any(|prefix| name.starts_with(prefix)),
        _ => false,
    }
}

const TEST_RANGE: &[u8] = b"probe_agent.self_test";

unsafe extern "C" fn range_start(context: *mut *mut c_void, range: *const u8) -> *mut *mut c_void {
    // SAFETY: the place for the returned unique_ptr.
    unsafe { *context = std::ptr::null_mut() };
    // SAFETY: torch gave us `range`.
    let what = unsafe { range_of(range) };
    profiled_ranges::range_began(range, is_of_collective(&what));
    if ENABLED.load(Ordering::Relaxed) {
        match what {
            Range::Optimizer(class) if OPTIMIZERS.load(Ordering::Relaxed) => {
                thread::with(|state| optimizer::begin(state, class))
            }
            Range::Gloo => thread::with(|state| completion::started(state, range as u64)),
            Range::Named(name) => thread::with(|state| spans::range_began(state, range as u64, name)),
            _ => {}
        }
    }
    context
}

unsafe extern "C" fn range_end(range: *const u8, _context: *mut c_void) {
    let is_over = profiled_ranges::range_ended(range);
    // SAFETY: torch gave us `range`.
    match unsafe { range_of(range) } {
        Range::Optimizer(class) if OPTIMIZERS.load(Ordering::Relaxed) => {
            thread::with(|state| optimizer::end(state, class))
        }
        Range::Gloo if ENABLED.load(Ordering::Relaxed) => {
            thread::with(|state| completion::finished(state, range as u64))
        }
        Range::Test => thread::with(|state| {
            if state.mode.get() == TESTING {
                state.test_ranges.set(state.test_ranges.get() + 1);
            }
        }),
        Range::Named(_) if is_over => thread::with(|state| spans::range_ended(state, range as u64)),
        Range::Named(_) => thread::with(|state| spans::give_up(state, range as u64)),
        _ => {}
    }
}

/// Looks a symbol up in libtorch_cpu.so, which must be loaded already.
pub(super) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: NOLOAD only finds what is there; the handle is kept, as torch is never unloaded.
    unsafe {
        let library = libc::dlopen(c"libtorch_cpu.so".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        let found = if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

type Add = unsafe extern "C" fn(Callback) -> u64;

fn callback(scope: usize, start: *const c_void, end: *const c_void) -> Callback {
    let mut scopes = [false; SCOPES];
    scopes[scope] = true;
    Callback { start, end, probability: 1.0, scopes, needs_inputs: false, needs_outputs: false, needs_ids: false }
}

fn missing() -> PyErr {
    PyRuntimeError::new_err("libtorch_cpu.so lacks a symbol of RecordFunction")
}

/// Finds `sequence_number::peek`, which the slot also uses. Error where torch has none.
#[pyfunction]
fn find_record_function() -> PyResult<()> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(PyRuntimeError::new_err("RecordFunction is used on x86-64 only"));
    }
    PEEK.store(symbol(c"_ZN2at15sequence_number4peekEv").ok_or_else(missing)?, Ordering::Relaxed);
    NAME.store(symbol(c"_ZNK2at14RecordFunction4nameEv").ok_or_else(missing)?, Ordering::Relaxed);
    let current_thread = symbol(c"_ZN2at14RecordFunction15currentThreadIdEv").ok_or_else(missing)?;
    CURRENT_THREAD.store(current_thread, Ordering::Relaxed);
    thread::with(thread::ThreadState::know_torch_thread);
    Ok(())
}

/// Bytes of a RecordFunction that calibration looks at; it is larger than this.
const LOOKED_AT: usize = 320;
static SCANNED: [AtomicU64; LOOKED_AT / 8] = [const { AtomicU64::new(0) }; LOOKED_AT / 8];

unsafe extern "C" fn scan_start(context: *mut *mut c_void, range: *const u8) -> *mut *mut c_void {
    // SAFETY: the place for the returned unique_ptr; a RecordFunction, which lies on the caller's stack, below other
    // frames, so that reading past its end still reads memory.
    unsafe {
        *context = std::ptr::null_mut();
        for (place, word) in SCANNED.iter().enumerate() {
            word.store(range.add(place * 8).cast::<u64>().read_volatile(), Ordering::Relaxed);
        }
    }
    context
}

/// Finds the fields of the sequence number and of the thread that made a node, and returns their offsets. `operate()` runs
/// one operation that autograd records on the calling thread. Run a few times at different sequence numbers, exactly one
/// field must show them all; run on threads of their own, one field of the nodes that they made must show each.
#[pyfunction]
fn calibrate_record_function(operate: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
    let sequence = find_sequence(operate)?;
    let made_on = find_made_on(operate)?;
    SEQUENCE.store(sequence, Ordering::Relaxed);
    MADE_ON.store(made_on, Ordering::Relaxed);
    Ok((sequence, made_on))
}

fn find_sequence(operate: &Bound<'_, PyAny>) -> PyResult<usize> {
    let mut fits = Fits::all();
    for gap in [7, 29, 3, 61] {
        for _ in 0..gap {
            operate.call0()?;
        }
        let expected = peek();
        fits.scan(FUNCTION, expected, || operate.call0())?;
    }
    fits.only("its sequence number")
}

/// Nodes are called here without the engine, which must not start in a process that may still fork.
fn find_made_on(operate: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = operate.py();
    let mut fits = Fits::all();
    for _ in 0..3 {
        let operate = operate.clone().unbind();
        let made = move || Python::attach(|py| PyResult::Ok((current_thread(), operate.call0(py)?)));
        let made = py.detach(|| std::thread::Builder::new().spawn(made).map(std::thread::JoinHandle::join))?;
        let (thread, result) = made.map_err(|_| PyRuntimeError::new_err("a thread of the agent has failed"))??;
        let result = result.bind(py);
        let (node, gradient) = (result.getattr("grad_fn")?, result.call_method0("detach")?);
        fits.scan(BACKWARD_FUNCTION, thread, || node.call1((gradient,)))?;
    }
    fits.only("the thread that made a node")
}

/// Which words of a RecordFunction have been all that they should be if they were a certain field.
struct Fits([bool; LOOKED_AT / 8]);

impl Fits {
    fn all() -> Self {
        Self([true; LOOKED_AT / 8])
    }

    /// Looks at them at the beginning of what `work()` runs in this scope.
    fn scan<T>(&mut self, scope: usize, expected: u64, work: impl FnOnce() -> PyResult<T>) -> PyResult<()> {
        SCANNED.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        with_callback(callback(scope, scan_start as *const c_void, std::ptr::null()), work)?;
        for (fits, word) in self.0.iter_mut().zip(&SCANNED) {
            *fits &= word.load(Ordering::Relaxed) == expected;
        }
        Ok(())
    }

    /// The offset of the only one left.
    fn only(&self, what: &str) -> PyResult<usize> {
        let places: Vec<usize> =
            self.0.iter().enumerate().filter_map(|(place, fits)| fits.then_some(place * 8)).collect();
        match places[..] {
            [place] if place != 0 => Ok(place),
            _ => {
                let message = format!("{} fields of RecordFunction look like {what}", places.len());
                Err(PyRuntimeError::new_err(message))
            }
        }
    }
}

/// A callback that is there in some steps only.
///
/// In the others it is taken out and not switched off (`at::disableCallback`): torch goes through all callbacks that there are, also
/// those that are off, for each of its ten kinds of ranges whenever it sets a thread's state, which is twice an autograd node.
#[derive(Debug)]
pub(super) struct Occasional(AtomicU64);

/// In the place of a handle while another thread adds the callback: two threads that train may begin a step at once.
const BEING_ADDED: u64 = u64::MAX;

impl Occasional {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Puts it in. Nothing before [`add_record_function`].
    fn put_in(&self, callback: Callback) {
        let add = ADD.load(Ordering::Relaxed);
        let is_ours = || self.0.compare_exchange(0, BEING_ADDED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !add.is_null() && is_ours() {
            // SAFETY: `at::addGlobalCallback`; the callbacks are ours and stay loaded as long as the process lives.
            let handle = unsafe { std::mem::transmute::<*mut c_void, Add>(add)(callback) };
            self.0.store(handle, Ordering::Relaxed);
        }
    }

    /// Puts it in, for all operators, with their inputs.
    pub(super) fn put_in_for_operators(&self, start: *const c_void, end: *const c_void) {
        self.put_in(Callback { needs_inputs: true, ..callback(FUNCTION, start, end) });
    }

    /// Takes it out, if it is there. Ranges that are open still end through it.
    pub(super) fn take_out(&self) {
        take_out(&self.0);
    }
}

/// Takes the callback with this handle out; 0 is none.
fn take_out(place: &AtomicU64) {
    let (remove, handle) = (REMOVE.load(Ordering::Relaxed), place.load(Ordering::Relaxed));
    let is_there = !remove.is_null() && handle != 0 && handle != BEING_ADDED;
    if is_there && place.compare_exchange(handle, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        // SAFETY: `at::removeCallback`, with a handle that torch gave.
        unsafe { std::mem::transmute::<*mut c_void, Remove>(remove)(handle) };
    }
}

fn node_callback() -> Callback {
    callback(BACKWARD_FUNCTION, node_start as *const c_void, node_end as *const c_void)
}

/// Adds the callbacks, if they aren't there. After [`calibrate_record_function`].
#[pyfunction]
fn add_record_function() -> PyResult<()> {
    let (add, remove) = (symbol(ADD_GLOBAL).ok_or_else(missing)?, symbol(REMOVE_ANY).ok_or_else(missing)?);
    if SEQUENCE.load(Ordering::Relaxed) == 0 {
        return Err(PyRuntimeError::new_err("the sequence number of RecordFunction has not been found"));
    }
    if RANGES.load(Ordering::Relaxed) == 0 {
        ADD.store(add, Ordering::Relaxed);
        REMOVE.store(remove, Ordering::Relaxed);
        NODE_CALLBACK.put_in(node_callback());
        let ranges = callback(USER_SCOPE, range_start as *const c_void, range_end as *const c_void);
        // SAFETY: torch's function of this name; the callback is ours and stays loaded as long as the process lives.
        let handle = unsafe { std::mem::transmute::<*mut c_void, Add>(add)(ranges) };
        RANGES.store(handle, Ordering::Relaxed);
        WATCHED.store(true, Ordering::Relaxed);
        profiled_ranges::find(symbol);
    }
    Ok(())
}

/// Whether the calling thread may be one of the engine's, inside a backward pass that another thread called. Asked only
/// where its nodes don't tell: then whatever is called while a pass is open elsewhere, off the training thread, counts.
#[inline]
pub(super) fn runs_elsewhere() -> bool {
    !WATCHED.load(Ordering::Relaxed)
        && PASSES.load(Ordering::Relaxed) > 0
        && TRAINING_THREAD.load(Ordering::Relaxed) != thread::identifier()
}

/// Puts the callback of nodes in or takes it out, where nodes are recorded by it. Between two steps.
pub(super) fn watch_nodes(wanted: bool) {
    let are_there = RANGES.load(Ordering::Relaxed) != 0;
    if !are_there || !NODES.load(Ordering::Relaxed) || WATCHED.load(Ordering::Relaxed) == wanted {
        return;
    }
    WATCHED.store(wanted, Ordering::Relaxed);
    if wanted {
        NODE_CALLBACK.put_in(node_callback());
    } else {
        NODE_CALLBACK.take_out();
    }
}

/// What `work()` says with a callback of this thread for all operators and their inputs.
pub(super) fn with_scan<T>(start: *const c_void, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    with_callback(Callback { needs_inputs: true, ..callback(FUNCTION, start, std::ptr::null()) }, work)
}

/// What `work()` says with a callback of this thread alone, which is gone again before anything else runs.
fn with_callback<T>(callback: Callback, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let add = adder(c"_ZN2at22addThreadLocalCallbackENS_22RecordFunctionCallbackE")?;
    let remove = remover().ok_or_else(missing)?;
    // SAFETY: torch's function, and callbacks of ours.
    let handle = unsafe { add(callback) };
    let result = work();
    // SAFETY: the handle just received.
    unsafe { remove(handle) };
    result
}

/// What `work()` says in turns with and without a callback of this thread.
pub(super) fn with_callback_in_turn(
    rounds: usize,
    needs_inputs: bool,
    mut work: impl FnMut() -> PyResult<u64>,
) -> PyResult<(Vec<u64>, Vec<u64>)> {
    let (mut withs, mut withouts) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        withouts.push(work()?);
        let plain = callback(FUNCTION, cost::pass_start as *const c_void, cost::pass_end as *const c_void);
        withs.push(with_callback(Callback { needs_inputs, ..plain }, &mut work)?);
    }
    Ok((withs, withouts))
}

/// Torch's function that adds a callback of all threads.
const ADD_GLOBAL: &CStr = c"_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE";
/// And the one that removes a callback.
const REMOVE_ANY: &CStr = c"_ZN2at14removeCallbackEm";

type Remove = unsafe extern "C" fn(u64);

/// Torch's function of this name, which adds a callback.
fn adder(name: &CStr) -> PyResult<Add> {
    let add = symbol(name).ok_or_else(missing)?;
    // SAFETY: only asked for functions with torch's own argument types.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Add>(add) })
}

/// Torch's function that removes one.
fn remover() -> Option<Remove> {
    // SAFETY: the function of this name, with torch's own argument types.
    symbol(REMOVE_ANY).map(|remove| unsafe { std::mem::transmute::<*mut c_void, Remove>(remove) })
}

/// Takes the callbacks out again. Ranges that are open still end through them.
#[pyfunction]
fn remove_record_function() {
    NODE_CALLBACK.take_out();
    take_out(&RANGES);
}

/// Whether the program's ranges are seen and can be ended. Without that no capture may begin.
#[pyfunction]
fn sees_ranges() -> bool {
    RANGES.load(Ordering::Relaxed) != 0 && profiled_ranges::are_found()
}

/// Chooses what the callbacks record.
#[pyfunction]
fn use_record_function(nodes: bool, optimizers: bool) {
    NODES.store(nodes, Ordering::Relaxed);
    OPTIMIZERS.store(optimizers, Ordering::Relaxed);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(find_record_function, module)?)?;
    module.add_function(wrap_pyfunction!(calibrate_record_function, module)?)?;
    module.add_function(wrap_pyfunction!(add_record_function, module)?)?;
    module.add_function(wrap_pyfunction!(remove_record_function, module)?)?;
    module.add_function(wrap_pyfunction!(sees_ranges, module)?)?;
    module.add_function(wrap_pyfunction!(use_record_function, module)?)
}
