//! Batches: what a loop waits for, and the state of the DataLoader when it is asked for a batch and when it returns one.
//!
//! Reads a few attributes, the size of a queue, the tasks of workers, and the batch. Only plain tensors in plain
//! containers are examined, whose attributes run no Python code.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{ffi, intern};

use super::attributes::{known, number};
use super::clock::ticks;
use super::cost;
use super::data_tasks::Tasks;
use super::libtorch::HiddenFromModes;
use super::policy::{self, Layer};
use super::thread::{self, RECORD};
use super::{boundary, module_names, shape, slot};
use crate::shared::ENABLED;
use probe_trace::payload::{HANDED, LOADER, OUTSTANDING, PERSISTENT, PINNED, PREFETCH, WORKERS};
use probe_trace::record::{Kind, Record, RecordTable};

/// Items of a batch that are examined; a batch of more has no size.
const MAX_ITEMS: isize = 64;

/// `collections.UserDict`, whose content is a plain dictionary (batches of tokenizers are of a subclass); kept alive.
static USER_DICT: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());

/// The class whose name was last remembered: loops seldom change between data sets.
static NAMED: AtomicU64 = AtomicU64::new(0);

/// The address of the class of `source`, which batches are loaded from. Remembers the name of the class.
fn class_of(source: &Bound<'_, PyAny>) -> PyResult<u64> {
    let class = source.get_type();
    let address = class.as_ptr() as u64;
    if NAMED.swap(address, Ordering::Relaxed) != address {
        module_names::name_type(&class)?;
    }
    Ok(address)
}

/// Batches that workers have made and the loop has not fetched. Where memory is pinned, a thread takes them from the
/// workers' queue at once and puts them into another; else both names mean the same queue.
fn batches_ready(iterator: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    let py = iterator.py();
    let from_workers = known(py, iterator.getattr_opt(intern!(py, "_worker_result_queue")))?.flatten();
    let pinned = known(py, iterator.getattr_opt(intern!(py, "_data_queue")))?.flatten();
    let both_are_one = matches!((&from_workers, &pinned), (Some(queue), Some(other)) if queue.is(other));
    let mut sum = None;
    for queue in [from_workers, pinned.filter(|_| !both_are_one)].into_iter().flatten() {
        let size = known(py, queue.call_method0(intern!(py, "qsize")))?;
        let Some(size) = size.and_then(|size| size.extract::<u64>().ok()) else { return Ok(None) };
        sum = Some(sum.unwrap_or(0) + size);
    }
    Ok(sum)
}

/// A batch: what `ask(iterator)` returns or raises. `iterator` is a DataLoader's, or one over `watched`, of which the batch is
/// number `index`.
///
/// In one function, because between two that Python calls one after the other the handler of a signal may raise, and what has
/// begun would never end.
#[pyfunction]
#[pyo3(signature = (ask, iterator, watched = None, index = None))]
pub(super) fn next_batch<'py>(
    ask: &Bound<'py, PyAny>,
    iterator: &Bound<'py, PyAny>,
    watched: Option<&Bound<'py, PyAny>>,
    index: Option<u64>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut tasks = Tasks::NONE;
    data_begin(iterator, watched, &mut tasks)?;
    let batch = ask.call1((iterator,));
    data_end(iterator, batch.as_ref().ok(), index, &tasks)?;
    batch
}

/// Records that a DataLoader's iterator is asked for a batch or, with `watched`, an iterator over that. Notes the `tasks` of its
/// workers.
fn data_begin(iterator: &Bound<'_, PyAny>, watched: Option<&Bound<'_, PyAny>>, tasks: &mut Tasks) -> PyResult<()> {
    let py = iterator.py();
    thread::with(|state| {
        let on = ENABLED.load(Ordering::Relaxed);
        let recorded = on && policy::is_on(Layer::Data) && state.mode.get() == RECORD;
        if on && state.data.depth() == 0 {
            boundary::check(py, state);
            slot::put_back(py, state, state.data_seen.get() && boundary::may_lack_forward(state));
            state.data_seen.set(true);
        }
        // After the boundary: a snippet that ran there is no cost of recording.
        let began = ticks();
        if !recorded {
            state.data.open(|| false);
            return Ok(());
        }
        let source = match watched {
            Some(source) => Some(source.clone()),
            None => known(py, iterator.getattr_opt(intern!(py, "_dataset")))?.flatten(),
        };
        let class = source.and_then(|source| class_of(&source).ok()).unwrap_or_default();
        let (mut ready, mut outstanding) = (u64::MAX, u64::MAX);
        // Without workers there is no queue, and reading a missing attribute costs an exception.
        if watched.is_none() && number(iterator, intern!(py, "_num_workers"))?.is_some_and(|workers| workers > 0) {
            ready = batches_ready(iterator)?.unwrap_or(u64::MAX);
            outstanding = number(iterator, intern!(py, "_tasks_outstanding"))?.unwrap_or(u64::MAX);
            tasks.note(iterator)?;
        }
        // The record is made last, so that the time until here is not counted as waiting.
        cost::spent(began);
        let iterator_word = iterator.as_ptr() as u64 & ((1 << OUTSTANDING) - 1)
            | outstanding.min(u64::MAX >> OUTSTANDING) << OUTSTANDING;
        state.data.open(|| {
            state.begin(RecordTable::DataTrace, Record::new(Kind::DataBegin, class, ticks(), ready, iterator_word))
        });
        Ok(())
    })
}

/// Records that the iterator has returned `batch`, number `index` of a watched iterable. None: it had no batch, or raised. `tasks`
/// are those of its workers when it was asked.
fn data_end(
    iterator: &Bound<'_, PyAny>,
    batch: Option<&Bound<'_, PyAny>>,
    index: Option<u64>,
    tasks: &Tasks,
) -> PyResult<()> {
    let py = iterator.py();
    thread::with(|state| {
        if !state.data.close() {
            return Ok(());
        }
        let now = ticks();
        let Some(batch) = batch else {
            state.end(Record::new(Kind::DataEnd, 0, now, u64::MAX, u64::MAX));
            return Ok(());
        };
        let mut payload = HANDED;
        let mut number_in_epoch = index;
        let mut facts = || -> PyResult<()> {
            if index.is_some() {
                return Ok(());
            }
            number_in_epoch = number(iterator, intern!(py, "_num_yielded"))?.and_then(|yielded| yielded.checked_sub(1));
            let Some(workers) = number(iterator, intern!(py, "_num_workers"))? else { return Ok(()) };
            let is = |name| number(iterator, name).map(|value| value == Some(1));
            payload |= LOADER | workers.min(0xffff) << WORKERS;
            if workers > 0 {
                let ahead = number(iterator, intern!(py, "_prefetch_factor"))?.unwrap_or_default();
                payload |= ahead.min(0xffff) << PREFETCH;
            }
            payload |= if is(intern!(py, "_pin_memory"))? { PINNED } else { 0 };
            payload |= if is(intern!(py, "_persistent_workers"))? { PERSISTENT } else { 0 };
            if let Some((worker, time)) = tasks.loaded(iterator)? {
                state.write_optional(Record::new(Kind::Loaded, 0, now, worker, time.unwrap_or(u64::MAX)));
            }
            Ok(())
        };
        // The interval ends in the ring whatever happens here: a slot was kept for its end.
        let interrupted = facts();
        let (bytes, samples) = measure(batch);
        let batch_number = number_in_epoch.filter(|value| *value < u64::from(u32::MAX)).unwrap_or(u64::from(u32::MAX));
        let samples = samples.unwrap_or(u32::MAX);
        state.end(Record::new(
            Kind::DataEnd,
            payload,
            now,
            bytes.unwrap_or(u64::MAX),
            batch_number | u64::from(samples) << 32,
        ));
        cost::spent(now);
        interrupted
    })
}

/// Size of a batch so far; None for what is not known.
#[derive(Debug)]
struct Sum {
    bytes: Option<u64>,
    samples: Option<u32>,
}

impl Sum {
    /// Adds an item.
    ///
    /// # Safety
    /// `item` is alive, and the GIL is held.
    unsafe fn add(&mut self, item: *mut ffi::PyObject) {
        // SAFETY: `item` is alive, and asked for its shape and size only where it is a plain tensor.
        unsafe {
            if !shape::is_tensor(item) {
                self.bytes = None;
                return;
            }
            if self.samples.is_none() {
                self.samples = shape::first_dimension(item);
            }
            self.bytes = match (self.bytes, shape::integer(item, c"nbytes")) {
                (Some(sum), Some(bytes)) => sum.checked_add(bytes),
                _ => None,
            };
        }
    }
}

/// Bytes and samples of a batch; None for what can't be found cheaply.
fn measure(batch: &Bound<'_, PyAny>) -> (Option<u64>, Option<u32>) {
    let mut sum = Sum { bytes: Some(0), samples: None };
    let inner = user_dict(batch);
    let object = inner.as_ref().unwrap_or(batch).as_ptr();
    let _hidden = HiddenFromModes::new();
    // SAFETY: the GIL is held, `object` is alive, and containers hand out borrowed items that they keep alive: nothing
    // that runs in between (getters of a plain tensor) changes them. No exception is set here, and none is left.
    unsafe {
        if shape::is_tensor(object) {
            sum.add(object);
        } else if ffi::PyTuple_Check(object) != 0 {
            let count = ffi::PyTuple_Size(object);
            (0..count.min(MAX_ITEMS)).for_each(|index| sum.add(ffi::PyTuple_GetItem(object, index)));
            sum.bytes = sum.bytes.filter(|_| (1..=MAX_ITEMS).contains(&count));
        } else if ffi::PyList_Check(object) != 0 {
            let count = ffi::PyList_Size(object);
            (0..count.min(MAX_ITEMS)).for_each(|index| sum.add(ffi::PyList_GetItem(object, index)));
            sum.bytes = sum.bytes.filter(|_| (1..=MAX_ITEMS).contains(&count));
        } else if ffi::PyDict_Check(object) != 0 {
            let (mut position, mut value, mut count) = (0, std::ptr::null_mut(), 0);
            while ffi::PyDict_Next(object, &raw mut position, std::ptr::null_mut(), &raw mut value) != 0 {
                count += 1;
                if count > MAX_ITEMS {
                    break;
                }
                sum.add(value);
            }
            sum.bytes = sum.bytes.filter(|_| (1..=MAX_ITEMS).contains(&count));
        } else {
            sum.bytes = None;
        }
    }
    (sum.bytes, sum.samples)
}

/// The dictionary that a `UserDict` holds.
fn user_dict<'py>(batch: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let class = USER_DICT.load(Ordering::Relaxed);
    // SAFETY: both are types; the second is kept alive.
    let fits = !class.is_null()
        && unsafe { ffi::PyType_IsSubtype(batch.get_type().as_type_ptr(), class.cast::<ffi::PyTypeObject>()) } != 0;
    if fits { batch.getattr_opt(intern!(batch.py(), "data")).ok().flatten() } else { None }
}

/// Sets the class `collections.UserDict`.
#[pyfunction]
fn set_user_dict(class: &Bound<'_, PyType>) {
    if USER_DICT.load(Ordering::Relaxed).is_null() {
        USER_DICT.store(class.clone().into_ptr(), Ordering::Relaxed);
    }
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(next_batch, module)?)?;
    module.add_function(wrap_pyfunction!(set_user_dict, module)?)
}
