//! How long workers of DataLoaders took to load batches: a table in memory that the training process shares with the workers that
//! it forks.
//!
//! A worker is no agent. It takes a task from one queue, loads the batch, and puts it into another: its `get` and `put` note when,
//! and `put` writes how long that was into the worker's row. The training process reads it there when the batch is handed over.
//! Nothing else travels between them, and no file is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Instant;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};

/// Rows, one a worker. The remainder of its process id says which: workers of one DataLoader are started one after the other.
const MAX_ROWS: usize = 2048;
/// Newest batches of a worker that are kept. A prime, because the numbers of a worker's batches differ by the number of workers.
const BATCHES: usize = 127;
/// Bits for the number of a task.
const TASK_BITS: u32 = 40;
/// The number of no task.
const NO_TASK: u64 = u64::MAX;

/// How long a worker took for a task.
#[derive(Debug)]
#[repr(C)]
struct FetchTime {
    /// The task's key, with the bits of `time` that are set inverted. If two workers write at the same time, or one is killed while it
    /// writes, the two words don't fit each other, and the time is not known.
    key: AtomicU64,
    /// Nanoseconds.
    time: AtomicU64,
}

/// The table; null where there is none. Never unmapped.
static TABLE: AtomicPtr<FetchTime> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the table. A second call does nothing, and without memory for it no time is known.
#[pyfunction]
fn share_fetch_times() {
    if !TABLE.load(Ordering::Acquire).is_null() {
        return;
    }
    // SAFETY: an anonymous mapping of a fixed size; the result is checked. Its memory is taken when a row is first written.
    let page = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), MAX_ROWS * BATCHES * size_of::<FetchTime>(), access, flags, -1, 0)
    };
    if page != libc::MAP_FAILED {
        TABLE.store(page.cast(), Ordering::Release);
    }
}

fn row(process: u32) -> Option<&'static [FetchTime]> {
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: the table has MAX_ROWS rows of BATCHES entries, is never unmapped, and all of its bytes are valid in atomics.
    (!table.is_null())
        .then(|| unsafe { std::slice::from_raw_parts(table.add(process as usize % MAX_ROWS * BATCHES), BATCHES) })
}

fn entry(process: u32, task: u64) -> Option<(&'static FetchTime, u64)> {
    let entry = row(process)?.get((task % BATCHES as u64) as usize)?;
    (task < 1 << TASK_BITS && process < 1 << (64 - TASK_BITS)).then(|| (entry, u64::from(process) << TASK_BITS | task))
}

fn write(process: u32, task: u64, time: u64) {
    if let Some((entry, key)) = entry(process, task) {
        entry.time.store(time, Ordering::Relaxed);
        entry.key.store(key ^ time, Ordering::Release);
    }
}

/// Nanoseconds that the worker with this process id took for its task of this number; None where it noted nothing.
pub(super) fn fetch_time(process: u32, task: u64) -> Option<u64> {
    let (entry, key) = entry(process, task)?;
    let check = entry.key.load(Ordering::Acquire);
    let time = entry.time.load(Ordering::Relaxed);
    (check ^ time == key).then_some(time)
}

/// The task that a worker took last.
struct CurrentTask {
    process: u32,
    number: AtomicU64,
    /// When, in nanoseconds after `beginning`.
    at: AtomicU64,
    beginning: Instant,
}

impl CurrentTask {
    fn now(&self) -> u64 {
        self.beginning.elapsed().as_nanos() as u64
    }

    /// `message` came out of the queue of tasks.
    fn takes(&self, message: &Bound<'_, PyAny>) {
        self.number.store(task_of(message), Ordering::Relaxed);
        self.at.store(self.now(), Ordering::Relaxed);
    }

    /// `message` goes into the queue of batches.
    fn puts(&self, message: &Bound<'_, PyAny>) {
        let task = task_of(message);
        if task != NO_TASK && self.number.swap(NO_TASK, Ordering::Relaxed) == task {
            write(self.process, task, self.now().saturating_sub(self.at.load(Ordering::Relaxed)));
        }
    }
}

/// The task that a message of torch is about: the first of two items.
fn task_of(message: &Bound<'_, PyAny>) -> u64 {
    let pair = message.cast_exact::<PyTuple>().ok().filter(|pair| pair.len() == 2);
    let number = pair
        .and_then(|pair| pair.get_borrowed_item(0).ok())
        .filter(|number| number.is_exact_instance_of::<pyo3::types::PyInt>());
    number.and_then(|number| number.extract().ok()).unwrap_or(NO_TASK)
}

/// Makes this process, a forked worker, note how long it takes from each task of the queue `tasks` to its batch, which it puts
/// into the queue `batches`. These functions are native, and so in no traceback.
#[pyfunction]
fn note_fetch_times(tasks: &Bound<'_, PyAny>, batches: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = tasks.py();
    let process = std::process::id();
    let Some(row) = row(process) else { return Ok(()) };
    // Another process may have had this process id.
    for entry in row {
        entry.key.store(0, Ordering::Relaxed);
        entry.time.store(0, Ordering::Relaxed);
    }
    let (get, put) = (intern!(py, "get"), intern!(py, "put"));
    let (their_get, their_put) = (tasks.getattr(get)?.unbind(), batches.getattr(put)?.unbind());
    let taken = Arc::new(CurrentTask {
        process,
        number: AtomicU64::new(NO_TASK),
        at: AtomicU64::new(0),
        beginning: Instant::now(),
    });
    let noted = Arc::clone(&taken);
    let our_get = PyCFunction::new_closure(
        py,
        Some(c"get"),
        None,
        move |args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>| {
            let message = their_get.bind(args.py()).call(args, kwargs)?;
            noted.takes(&message);
            PyResult::Ok(message.unbind())
        },
    )?;
    let our_put = PyCFunction::new_closure(
        py,
        Some(c"put"),
        None,
        move |args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>| {
            if let Ok(message) = args.get_borrowed_item(0) {
                taken.puts(&message);
            }
            PyResult::Ok(their_put.bind(args.py()).call(args, kwargs)?.unbind())
        },
    )?;
    batches.setattr(put, our_put)?;
    tasks.setattr(get, our_get)
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(share_fetch_times, module)?)?;
    module.add_function(wrap_pyfunction!(note_fetch_times, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_that_of_the_worker_and_the_task() {
        share_fetch_times();
        write(7, 3, 500);
        assert_eq!(fetch_time(7, 3), Some(500));
        for (process, task) in [(7 + MAX_ROWS as u32, 3), (7, 3 + BATCHES as u64), (8, 3), (7, 4), (7, 1 << TASK_BITS)]
        {
            assert_eq!(fetch_time(process, task), None);
        }
        // The row is another worker's now.
        write(7 + MAX_ROWS as u32, 3, 600);
        assert_eq!((fetch_time(7, 3), fetch_time(7 + MAX_ROWS as u32, 3)), (None, Some(600)));
        // It was killed between the two words.
        entry(7, 3).expect("an entry").0.time.store(700, Ordering::Relaxed);
        assert_eq!((fetch_time(7, 3), fetch_time(7 + MAX_ROWS as u32, 3)), (None, None));
    }
}
