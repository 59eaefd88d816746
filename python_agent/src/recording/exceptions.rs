//! Uncaught exceptions on their way to the background thread.
//!
//! They are rare, so they wait behind a lock. The thread that records one that ends the process, other than by Python's own exit,
//! can wait until the collector has it.

use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use probe_proto::table::Time;
use probe_proto::tables::exceptions;
use pyo3::ffi;
use pyo3::prelude::*;

use super::clock::unix_ns;
use super::policy::{Layer, is_on};
use super::process_flag;
use crate::shared::{self, ENABLED, STEP};
use probe_trace::row_buffer::RowBuffer;

/// `schema.name` of the table of exceptions.
const TABLE: &str = "python.exceptions";

/// Rows of a process at most, because their texts stay in the connection's string table. Exceptions that end it are not among
/// them.
const MAX_EXCEPTIONS: u64 = 256;
/// Rows of exceptions that end the process, at most.
const MAX_FATAL: u64 = 16;

/// An exception, as Python describes it.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
struct Raised {
    exception: String,
    message: String,
    traceback: String,
    uncaught: bool,
    main: bool,
    module: Option<String>,
    stage: Option<String>,
    function: Option<String>,
    file: Option<String>,
    line: Option<i32>,
    out_of_memory: bool,
    memory: Option<String>,
    thread: i64,
    thread_name: String,
}

#[derive(Debug, Default)]
pub(super) struct PendingExceptions {
    waiting: Vec<(i64, i64, Raised)>,
    /// How many have ever been kept.
    kept: u64,
    /// How many of the kept ones have been drained.
    taken: u64,
    /// How many of the drained ones the collector has stored.
    stored: u64,
    dropped: u64,
    fatal: u64,
}

pub(super) static ALL: Mutex<PendingExceptions> =
    Mutex::new(PendingExceptions { waiting: Vec::new(), kept: 0, taken: 0, stored: 0, dropped: 0, fatal: 0 });
static STORED: Condvar = Condvar::new();

/// Moves the waiting exceptions into `sink`. For the background thread.
pub(super) fn drain(sink: &mut RowBuffer) {
    let (waiting, dropped) = {
        let mut all = shared::lock(&ALL);
        all.taken = all.kept;
        (std::mem::take(&mut all.waiting), std::mem::take(&mut all.dropped))
    };
    if dropped > 0 {
        sink.dropped(TABLE, "too many exceptions", dropped);
    }
    for (step, unix_ns, raised) in waiting {
        let row = row(step, unix_ns, &raised, sink);
        sink.push(row);
    }
}

fn row(step: i64, unix_ns: i64, raised: &Raised, sink: &mut RowBuffer) -> exceptions::Row {
    let mut text = |text: &str| sink.strings.id(text);
    exceptions::Row {
        step,
        ts: Time(unix_ns),
        exception: text(&raised.exception),
        message: text(&raised.message),
        traceback: text(&raised.traceback),
        uncaught: raised.uncaught,
        main: raised.main,
        module: raised.module.as_deref().map(&mut text),
        stage: raised.stage.as_deref().map(&mut text),
        function: raised.function.as_deref().map(&mut text),
        file: raised.file.as_deref().map(&mut text),
        line: raised.line,
        out_of_memory: raised.out_of_memory,
        memory: raised.memory.as_deref().map(&mut text),
        thread: raised.thread,
        thread_name: text(&raised.thread_name),
    }
}

/// Begins anew in a forked child that becomes an agent.
pub(super) fn begin_anew() {
    *shared::lock(&ALL) = PendingExceptions::default();
}

/// How many exceptions have been drained so far.
pub fn drained_count() -> u64 {
    shared::lock(&ALL).taken
}

/// Whether a thread may wait for exceptions that the collector has not stored yet.
pub fn are_awaited() -> bool {
    let all = shared::lock(&ALL);
    all.stored < all.taken
}

/// Notes that the collector has stored the first `count` exceptions.
pub fn note_stored(count: u64) {
    shared::lock(&ALL).stored = count;
    STORED.notify_all();
}

/// Keeps an exception. With `wait_s`, waits up to that long until the collector has it; False where it has not by then.
#[pyfunction]
fn record_exception(py: Python<'_>, raised: Raised, wait_s: f64) -> bool {
    if process_flag::is_child() || !ENABLED.load(Ordering::Relaxed) || !is_on(Layer::Exceptions) {
        return false;
    }
    let number = {
        let mut all = shared::lock(&ALL);
        let fatal = raised.uncaught && raised.main;
        let (count, most) = if fatal { (all.fatal, MAX_FATAL) } else { (all.kept - all.fatal, MAX_EXCEPTIONS) };
        if count >= most {
            all.dropped += 1;
            return false;
        }
        all.fatal += u64::from(fatal);
        all.kept += 1;
        all.waiting.push((STEP.load(Ordering::Relaxed), unix_ns(), raised));
        all.kept
    };
    match Duration::try_from_secs_f64(wait_s) {
        Ok(wait) if !wait.is_zero() => py.detach(|| wait_for(number, wait)),
        _ => true,
    }
}

fn wait_for(number: u64, wait: Duration) -> bool {
    let all: MutexGuard<'_, PendingExceptions> = shared::lock(&ALL);
    let waited = STORED.wait_timeout_while(all, wait, |all| all.stored < number);
    !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
}

/// Called with an exception that leaves an outermost module and is of a kind that may say that memory ran out.
static PASSING: Mutex<Option<Py<PyAny>>> = Mutex::new(None);

/// Sets the function that is called with such an exception.
#[pyfunction]
fn set_passing(callback: Option<Py<PyAny>>) {
    *shared::lock(&PASSING) = callback;
}

/// Examines the exception that an outermost module's call has ended in. It is set, and stays as it is. Most exceptions can't mean
/// that memory ran out, and are passed on at once.
#[cold]
pub(super) fn passing() {
    if process_flag::is_child() || !is_on(Layer::Exceptions) {
        return;
    }
    // SAFETY: slots are called with the GIL held, and an exception is set.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: as above; the classes are the interpreter's own and live for ever.
    let may_be = unsafe {
        ffi::PyErr_ExceptionMatches(ffi::PyExc_RuntimeError) != 0
            || ffi::PyErr_ExceptionMatches(ffi::PyExc_MemoryError) != 0
    };
    if !may_be {
        return;
    }
    let Some(callback) = shared::lock(&PASSING).as_ref().map(|callback| callback.clone_ref(py)) else { return };
    let Some(error) = PyErr::take(py) else { return };
    // The callback never raises; if it did, its error would be dropped here, and the original exception stays the one raised.
    drop(callback.call1(py, (error.value(py), error.traceback(py))));
    error.restore(py);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_passing, module)?)?;
    module.add_function(wrap_pyfunction!(record_exception, module)?)
}
