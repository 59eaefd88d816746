//! Ranges that began while torch.profiler was on in their thread, and end with it (`record_function`).
//!
//! Torch keeps a pointer from an open range to the memory of the profiler under which it began. If that profiler is over and
//! another one is on where the range ends, torch writes to freed memory.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::shared;

/// A range of the program's own, or of torch's, that began while a profiler was on in its thread.
pub(super) struct ProfiledRange {
    range: usize,
    thread: usize,
    /// A collective's, which may end on another thread at any time.
    ends_elsewhere: bool,
}

pub(super) static PROFILED: Mutex<Vec<ProfiledRange>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// `torch::profiler::impl::profilerEnabled()`; null before [`find`], and where torch lacks it.
static IS_PROFILED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// `at::RecordFunction::end()`; null before [`find`], and where torch lacks it.
static END: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// Whether [`end_ranges`] runs on this thread.
    static IS_ENDING: Cell<bool> = const { Cell::new(false) };
}

/// A number that identifies the calling thread among those that run.
fn this_thread() -> usize {
    IS_ENDING.with(|is_ending| std::ptr::from_ref(is_ending) as usize)
}

/// Finds torch's functions by their symbols. Called when the callbacks of ranges are added.
pub(super) fn find(symbol: impl Fn(&CStr) -> Option<*mut c_void>) {
    for (function, name) in
        [(&IS_PROFILED, c"_ZN5torch8profiler4impl15profilerEnabledEv"), (&END, c"_ZN2at14RecordFunction3endEv")]
    {
        function.store(symbol(name).unwrap_or(std::ptr::null_mut()), Ordering::Relaxed);
    }
}

/// Whether torch has the functions that [`find`] looks for.
pub(super) fn are_found() -> bool {
    !IS_PROFILED.load(Ordering::Relaxed).is_null() && !END.load(Ordering::Relaxed).is_null()
}

/// Notes that a range begins on this thread.
pub(super) fn range_began(range: *const u8, ends_elsewhere: bool) {
    let is_profiled = IS_PROFILED.load(Ordering::Relaxed);
    if is_profiled.is_null() {
        return;
    }
    // SAFETY: torch's function of this name, stored by `find` only; it looks at a thread-local pointer.
    if unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> bool>(is_profiled)() } {
        let mut profiled = shared::lock(&PROFILED);
        profiled.push(ProfiledRange { range: range as usize, thread: this_thread(), ends_elsewhere });
        COUNT.store(profiled.len(), Ordering::Relaxed);
    }
}

/// Notes that a range ends. False where it ends only because the profiler stops, and goes on for the program.
pub(super) fn range_ended(range: *const u8) -> bool {
    if COUNT.load(Ordering::Relaxed) > 0 {
        let mut profiled = shared::lock(&PROFILED);
        if let Some(index) = profiled.iter().rposition(|open| open.range == range as usize) {
            profiled.remove(index);
            COUNT.store(profiled.len(), Ordering::Relaxed);
        }
    }
    !IS_ENDING.get()
}

/// Whether a collective is open that began while a profiler was on: that profiler must not be stopped yet.
#[pyfunction]
fn is_collective_profiled() -> bool {
    COUNT.load(Ordering::Relaxed) > 0 && shared::lock(&PROFILED).iter().any(|open| open.ends_elsewhere)
}

/// Ends, for torch's observers, the calling thread's ranges that began while a profiler was on. Their own end then does nothing.
#[pyfunction]
fn end_ranges() {
    let end = END.load(Ordering::Relaxed);
    let here = this_thread();
    let newest = || {
        let profiled = shared::lock(&PROFILED);
        profiled.iter().rfind(|open| open.thread == here && !open.ends_elsewhere).map(|open| open.range)
    };
    if end.is_null() {
        return;
    }
    IS_ENDING.set(true);
    while let Some(range) = newest() {
        // SAFETY: torch's function of this name on a RecordFunction that has begun on this thread and still exists: its
        // destructor would have ended it, which calls `range_ended`. After its end it has no callbacks, so ending it again does
        // nothing.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(end)(range as *mut c_void) };
        // `range_ended` took it from the list, unless torch did not call it.
        range_ended(range as *const u8);
    }
    IS_ENDING.set(false);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(is_collective_profiled, module)?)?;
    module.add_function(wrap_pyfunction!(end_ranges, module)?)
}
