//! Batches: what a loop waits for, and the state of the DataLoader when it is asked for a batch and when it returns one.
//!
//! Reads a few attributes, the size of a queue, the tasks of workers, and the batch.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::intern;
use pyo3::prelude::*;

use super::attributes::{hide_own_errors, number};
use super::batch::BatchSize;
use super::clock::ticks;
use super::cost;
use super::data_tasks::WorkerTasks;
use super::policy::{self, Layer};
use super::thread::{self, RECORD};
use super::{boundary, module_names, slot};
use crate::shared::ENABLED;
use probe_trace::payload::{HANDED, LOADER, OUTSTANDING, PERSISTENT, PINNED, PREFETCH, WORKERS};
use probe_trace::record::{RecordKind, RecordTable, RingRecord};

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
    let from_workers = hide_own_errors(py, iterator.getattr_opt(intern!(py, "_worker_result_queue")))?.flatten();
    let pinned = hide_own_errors(py, iterator.getattr_opt(intern!(py, "_data_queue")))?.flatten();
    let both_are_one = matches!((&from_workers, &pinned), (Some(queue), Some(other)) if queue.is(other));
    let mut sum = None;
    for queue in [from_workers, pinned.filter(|_| !both_are_one)].into_iter().flatten() {
        let size = hide_own_errors(py, queue.call_method0(intern!(py, "qsize")))?;
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
    let mut tasks = WorkerTasks::NONE;
    data_begin(iterator, watched, &mut tasks)?;
    let batch = ask.call1((iterator,));
    data_end(iterator, batch.as_ref().ok(), index, &tasks)?;
    batch
}

/// Records that a DataLoader's iterator is asked for a batch or, with `watched`, an iterator over that. Notes the `tasks` of its
/// workers.
fn data_begin(
    iterator: &Bound<'_, PyAny>,
    watched: Option<&Bound<'_, PyAny>>,
    tasks: &mut WorkerTasks,
) -> PyResult<()> {
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
            None => hide_own_errors(py, iterator.getattr_opt(intern!(py, "_dataset")))?.flatten(),
        };
        let class = source.and_then(|source| class_of(&source).ok()).unwrap_or_default();
        let (mut ready, mut outstanding) = (u64::MAX, u64::MAX);
        // Without workers there is no queue, and reading a missing attribute costs an exception.
        if watched.is_none() && number(iterator, intern!(py, "_num_workers"))?.is_some_and(|workers| workers > 0) {
            ready = batches_ready(iterator)?.unwrap_or(u64::MAX);
            outstanding = number(iterator, intern!(py, "_tasks_outstanding"))?.unwrap_or(u64::MAX);
            tasks.note_tasks(iterator)?;
        }
        // The record is made last, so that the time until here is not counted as waiting.
        cost::add_rare(began);
        let iterator_word = iterator.as_ptr() as u64 & ((1 << OUTSTANDING) - 1)
            | outstanding.min(u64::MAX >> OUTSTANDING) << OUTSTANDING;
        state.data.open(|| {
            state.begin(
                RecordTable::DataTrace,
                RingRecord::new(RecordKind::DataBegin, class, ticks(), ready, iterator_word),
            )
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
    tasks: &WorkerTasks,
) -> PyResult<()> {
    let py = iterator.py();
    thread::with(|state| {
        if !state.data.close() {
            return Ok(());
        }
        let now = ticks();
        let Some(batch) = batch else {
            state.end(RingRecord::new(RecordKind::DataEnd, 0, now, u64::MAX, u64::MAX));
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
                state.write_optional(RingRecord::new(RecordKind::Loaded, 0, now, worker, time.unwrap_or(u64::MAX)));
            }
            Ok(())
        };
        // The interval ends in the ring whatever happens here: a slot was kept for its end.
        let interrupted = facts();
        let size = BatchSize::of(batch, Some(iterator).filter(|_| index.is_none()), number_in_epoch);
        let (size, interrupted) =
            size.map_or_else(|error| (BatchSize::default(), Err(error)), |size| (size, interrupted));
        if let Some(padding) = size.padding {
            state.write_optional(RingRecord::new(RecordKind::Padding, 0, now, padding.to_bits(), 0));
        }
        let batch_number = number_in_epoch.filter(|value| *value < u64::from(u32::MAX)).unwrap_or(u64::from(u32::MAX));
        let samples = size.samples.unwrap_or(u32::MAX);
        state.end(RingRecord::new(
            RecordKind::DataEnd,
            payload,
            now,
            size.bytes.unwrap_or(u64::MAX),
            batch_number | u64::from(samples) << 32,
        ));
        cost::add_rare(now);
        interrupted
    })
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(next_batch, module)?)
}
