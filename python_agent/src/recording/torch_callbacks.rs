//! Adds, switches and removes torch's RecordFunction callbacks, whatever they do.

use std::ffi::{CStr, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pyo3::prelude::*;

use super::autograd_passes::{NODES, WATCHED};
use super::libtorch::{missing, symbol};
use crate::shared;

const SCOPES: usize = 10;
pub(super) const FUNCTION: usize = 0;
pub(super) const BACKWARD_FUNCTION: usize = 1;
const USER_SCOPE: usize = 7;

/// `at::RecordFunctionCallback` of torch 2.5 to 2.15, as tests/torch_layout.cpp compares it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RecordFunctionCallback {
    start: *const c_void,
    end: *const c_void,
    probability: f64,
    scopes: [bool; SCOPES],
    needs_inputs: bool,
    needs_outputs: bool,
    needs_ids: bool,
}

/// `at::addGlobalCallback` and `at::removeCallback`; null before they were looked up.
static ADD: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static REMOVE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Called for each autograd node of a backward pass.
pub(super) static NODE_CALLBACK: GlobalCallback = GlobalCallback::new(BACKWARD_FUNCTION, false);
/// Called for each range of `record_function`.
pub(super) static RANGE_CALLBACK: GlobalCallback = GlobalCallback::new(USER_SCOPE, false);
/// Called for each operator.
pub(super) static OPERATOR_CALLBACK: GlobalCallback = GlobalCallback::new(FUNCTION, true);

/// Torch's function that adds a callback.
type AddCallback = unsafe extern "C" fn(RecordFunctionCallback) -> u64;

impl RecordFunctionCallback {
    /// This callback, called with the inputs of the operator that begins.
    pub(super) fn with_inputs(self) -> Self {
        Self { needs_inputs: true, ..self }
    }
}

/// A callback for this scope of torch's, which calls `start` and `end`.
pub(super) fn callback(scope: usize, start: *const c_void, end: *const c_void) -> RecordFunctionCallback {
    let mut scopes = [false; SCOPES];
    scopes[scope] = true;
    RecordFunctionCallback {
        start,
        end,
        probability: 1.0,
        scopes,
        needs_inputs: false,
        needs_outputs: false,
        needs_ids: false,
    }
}

/// A callback that torch calls on all threads, which is added and removed again.
///
/// A callback that few steps need is taken out in the other steps, and not switched off (`at::disableCallback`): torch iterates
/// over all callbacks, also those that are off, for each of its ten kinds of ranges whenever it sets a thread's state, which is
/// twice for each autograd node.
#[derive(Debug)]
pub(super) struct GlobalCallback {
    scope: usize,
    needs_inputs: bool,
    /// The function that it calls when a range begins; null before it may be put in.
    start: AtomicPtr<c_void>,
    end: AtomicPtr<c_void>,
    /// Torch's handle of the callback; 0 while it is not put in.
    handle: AtomicU64,
}

/// Held while a callback is put in or taken out. Several threads may begin steps at once, without the GIL where an optimizer's
/// range ends. A thread that forks holds it too: torch's own lock of its callbacks would stay locked in the child, where each
/// thread that sees them changed takes it.
pub(super) static CHANGES: Mutex<()> = Mutex::new(());

impl GlobalCallback {
    const fn new(scope: usize, needs_inputs: bool) -> Self {
        let (start, end) = (AtomicPtr::new(std::ptr::null_mut()), AtomicPtr::new(std::ptr::null_mut()));
        Self { scope, needs_inputs, start, end, handle: AtomicU64::new(0) }
    }

    /// Sets the functions that the callback calls, and finds torch's functions. Error where torch lacks them.
    pub(super) fn prepare(&self, start: *const c_void, end: *const c_void) -> PyResult<()> {
        let found = [symbol(ADD_GLOBAL).ok_or_else(missing)?, symbol(REMOVE_ANY).ok_or_else(missing)?];
        [&ADD, &REMOVE].iter().zip(found).for_each(|(pointer, function)| pointer.store(function, Ordering::Relaxed));
        self.end.store(end.cast_mut(), Ordering::Relaxed);
        self.start.store(start.cast_mut(), Ordering::Relaxed);
        Ok(())
    }

    /// Puts the callback in, if it is not there. Does nothing before [`Self::prepare`].
    pub(super) fn put_in(&self) {
        self.change(|| true);
    }

    /// Takes the callback out, if it is there. Ranges that are open still end through it.
    pub(super) fn take_out(&self) {
        self.change(|| false);
    }

    /// Puts the callback in or takes it out. `wanted` is called while no other thread can change it.
    pub(super) fn change(&self, wanted: impl FnOnce() -> bool) {
        let (add, remove) = (ADD.load(Ordering::Relaxed), REMOVE.load(Ordering::Relaxed));
        let start = self.start.load(Ordering::Relaxed);
        let _alone = shared::lock(&CHANGES);
        let wanted = wanted();
        if add.is_null() || remove.is_null() || start.is_null() || wanted == self.is_there() {
            return;
        }
        if !wanted {
            // SAFETY: `at::removeCallback`, with a handle that torch gave.
            unsafe {
                std::mem::transmute::<*mut c_void, RemoveCallback>(remove)(self.handle.swap(0, Ordering::Relaxed))
            };
            return;
        }
        let plain = callback(self.scope, start, self.end.load(Ordering::Relaxed));
        let given = if self.needs_inputs { plain.with_inputs() } else { plain };
        // SAFETY: `at::addGlobalCallback`; the functions are ours and stay loaded as long as the process lives.
        let handle = unsafe { std::mem::transmute::<*mut c_void, AddCallback>(add)(given) };
        self.handle.store(handle, Ordering::Relaxed);
    }

    pub(super) fn is_there(&self) -> bool {
        self.handle.load(Ordering::Relaxed) != 0
    }
}

/// Puts the callback of nodes in or takes it out, if nodes are recorded by it. Called between two steps.
pub(super) fn watch_nodes(wanted: bool) {
    if !NODES.load(Ordering::Relaxed) || WATCHED.load(Ordering::Relaxed) == wanted {
        return;
    }
    WATCHED.store(wanted, Ordering::Relaxed);
    NODE_CALLBACK.change(|| WATCHED.load(Ordering::Relaxed));
}

/// The result of `work()` with a callback on this thread alone, which is removed before anything else runs.
pub(super) fn with_callback<T>(callback: RecordFunctionCallback, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let add = adder(c"_ZN2at22addThreadLocalCallbackENS_22RecordFunctionCallbackE")?;
    let remove = remover().ok_or_else(missing)?;
    // SAFETY: torch's function, and callbacks of ours.
    let _added = AddedCallback { handle: unsafe { add(callback) }, remove };
    work()
}

/// A callback of this thread, which is removed when this is dropped.
struct AddedCallback {
    handle: u64,
    remove: RemoveCallback,
}

impl Drop for AddedCallback {
    fn drop(&mut self) {
        // SAFETY: the handle that torch gave, on the same thread.
        unsafe { (self.remove)(self.handle) };
    }
}

/// The results of `work()` with and without a callback of this thread, called in turns.
pub(super) fn with_callback_in_turn(
    rounds: usize,
    needs_inputs: bool,
    mut work: impl FnMut() -> PyResult<u64>,
) -> PyResult<(Vec<u64>, Vec<u64>)> {
    let (mut withs, mut withouts) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        withouts.push(work()?);
        let plain = callback(FUNCTION, pass_start as *const c_void, pass_end as *const c_void);
        let given = if needs_inputs { plain.with_inputs() } else { plain };
        withs.push(with_callback(given, &mut work)?);
    }
    Ok((withs, withouts))
}

/// Symbol of torch's function that adds a callback for all threads.
const ADD_GLOBAL: &CStr = c"_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE";
/// Symbol of torch's function that removes any callback.
const REMOVE_ANY: &CStr = c"_ZN2at14removeCallbackEm";

/// Torch's function that removes a callback.
type RemoveCallback = unsafe extern "C" fn(u64);

/// Torch's function of this name, which adds a callback.
fn adder(name: &CStr) -> PyResult<AddCallback> {
    let add = symbol(name).ok_or_else(missing)?;
    // SAFETY: only asked for functions with torch's own argument types.
    Ok(unsafe { std::mem::transmute::<*mut c_void, AddCallback>(add) })
}

/// Torch's function that removes a callback; None where torch lacks it.
fn remover() -> Option<RemoveCallback> {
    // SAFETY: the function of this name, with torch's own argument types.
    symbol(REMOVE_ANY).map(|remove| unsafe { std::mem::transmute::<*mut c_void, RemoveCallback>(remove) })
}

/// A start function that does nothing, to measure torch's call of it.
unsafe extern "C" fn pass_start(context: *mut *mut c_void, _range: *const u8) -> *mut *mut c_void {
    // SAFETY: `context` is the memory for the returned unique_ptr.
    unsafe { *context = std::ptr::null_mut() };
    context
}

/// An end function that does nothing.
unsafe extern "C" fn pass_end(_range: *const u8, _context: *mut c_void) {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::time::{Duration, Instant};

    use super::*;

    static IN_TORCH: AtomicUsize = AtomicUsize::new(0);
    static IS_ADDING: AtomicBool = AtomicBool::new(false);
    static IS_OUT: AtomicBool = AtomicBool::new(false);

    fn wait(flag: &AtomicBool, patience: Duration) {
        let begun = Instant::now();
        while !flag.load(Ordering::SeqCst) && begun.elapsed() < patience {
            std::thread::yield_now();
        }
    }

    /// Torch's, while which another thread takes the callback out, if that does not wait.
    unsafe extern "C" fn add(_: RecordFunctionCallback) -> u64 {
        IS_ADDING.store(true, Ordering::SeqCst);
        wait(&IS_OUT, Duration::from_millis(100));
        IN_TORCH.fetch_add(1, Ordering::SeqCst) as u64 + 1
    }

    unsafe extern "C" fn remove(_: u64) {
        IN_TORCH.fetch_sub(1, Ordering::SeqCst);
    }

    #[test]
    fn what_one_thread_takes_out_while_another_puts_it_in_is_out() {
        static OURS: GlobalCallback = GlobalCallback::new(BACKWARD_FUNCTION, false);
        ADD.store(add as *mut c_void, Ordering::SeqCst);
        REMOVE.store(remove as *mut c_void, Ordering::SeqCst);
        OURS.start.store(pass_start as *mut c_void, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| OURS.put_in());
            wait(&IS_ADDING, Duration::from_secs(60));
            OURS.take_out();
            IS_OUT.store(true, Ordering::SeqCst);
        });
        assert_eq!((IN_TORCH.load(Ordering::SeqCst), OURS.is_there()), (0, false));
    }
}
