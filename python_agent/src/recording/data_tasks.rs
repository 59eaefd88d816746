//! Which worker of a DataLoader loaded a batch, by the iterator's own list of the tasks that it gave to workers.
//!
//! The iterator does not keep the task of a batch that it has handed over, so the list is read before it is asked. What its
//! attributes mean was read in torch 2.15, and not checked in earlier releases. Of classes made from torch's nothing is known.

use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyTuple, PyType};
use pyo3::{ffi, intern};

use super::attributes::{attribute, number};
use super::fetch_times;

/// Most tasks that are looked at. With more at once, the worker of some batches is not known.
const MAX_TASKS: usize = 64;
/// Most tasks that are looked at where batches are in order: the first one, behind those of workers that have come to their end.
const MAX_TASKS_IN_ORDER: usize = 8;

/// `_MultiProcessingDataLoaderIter`, kept alive.
static LOADER_ITERATOR: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());

/// The number of a task in the epoch, and the worker that it was given to.
type WorkerTask = (u64, u32);

/// The tasks of workers, oldest first.
#[derive(Debug)]
pub(super) struct WorkerTasks {
    is_in_order: bool,
    count: usize,
    tasks: [WorkerTask; MAX_TASKS],
}

impl WorkerTasks {
    pub(super) const NONE: Self = Self { is_in_order: true, count: 0, tasks: [(0, 0); MAX_TASKS] };

    fn as_slice(&self) -> &[WorkerTask] {
        &self.tasks[..self.count]
    }

    /// Notes the tasks of the iterator's workers. There are none if it is not a DataLoader's with workers, of torch's own class.
    pub(super) fn note_tasks(&mut self, iterator: &Bound<'_, PyAny>) -> PyResult<()> {
        self.count = 0;
        if iterator.get_type().as_ptr() != LOADER_ITERATOR.load(Ordering::Relaxed) {
            return Ok(());
        }
        let py = iterator.py();
        // Torch before 2.6 has batches in order alone.
        self.is_in_order =
            attribute(iterator, intern!(py, "_in_order"))?.is_none_or(|value| value.is_truthy().unwrap_or_default());
        let Some(list) = task_list(iterator)? else { return Ok(()) };
        for (number, task) in list.iter().take(if self.is_in_order { MAX_TASKS_IN_ORDER } else { MAX_TASKS }) {
            // The worker, and the batch where it came before those that are handed over first.
            let worker = task.cast_exact::<PyTuple>().ok().and_then(|task| task.get_item(0).ok());
            let worker = worker.and_then(|worker| plain(&worker)).and_then(|worker| u32::try_from(worker).ok());
            let (Some(number), Some(worker)) = (plain(&number), worker) else { return Ok(()) };
            self.tasks[self.count] = (number, worker);
            self.count += 1;
        }
        Ok(())
    }

    /// The worker that loaded the batch that the iterator has handed over since these tasks were noted, and the nanoseconds that
    /// it took.
    pub(super) fn loaded(&self, iterator: &Bound<'_, PyAny>) -> PyResult<Option<(u64, Option<u64>)>> {
        let Some((task, worker)) = self.handed(iterator)? else { return Ok(None) };
        let time = process_of(iterator, worker)?.and_then(|process| fetch_times::fetch_time(process, task));
        Ok(Some((u64::from(worker), time)))
    }

    fn handed(&self, iterator: &Bound<'_, PyAny>) -> PyResult<Option<WorkerTask>> {
        let py = iterator.py();
        if self.count == 0 {
            return Ok(None);
        }
        if self.is_in_order {
            let last = number(iterator, intern!(py, "_rcvd_idx"))?.and_then(|next| next.checked_sub(1));
            return Ok(self.as_slice().iter().find(|(number, _)| Some(*number) == last).copied());
        }
        let Some(list) = task_list(iterator)? else { return Ok(None) };
        let statuses = attribute(iterator, intern!(py, "_workers_status"))?;
        let Some(Ok(statuses)) = statuses.as_ref().map(|value| value.cast_exact::<PyList>()) else { return Ok(None) };
        // Tasks of workers that have come to their end are removed from the list, too.
        let works = |worker: u32| {
            let status = statuses.get_item(worker as usize);
            status.is_ok_and(|status| status.is_truthy().unwrap_or_default())
        };
        let is_gone = |number: u64| list.contains(number).is_ok_and(|is_there| !is_there);
        let mut gone = self.as_slice().iter().filter(|(number, worker)| is_gone(*number) && works(*worker));
        Ok(gone.next().filter(|_| gone.next().is_none()).copied())
    }
}

/// The iterator's list of tasks that it gave to workers and whose batches it has not handed over.
fn task_list<'py>(iterator: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let list = attribute(iterator, intern!(iterator.py(), "_task_info"))?;
    Ok(list.and_then(|list| list.cast_into_exact::<PyDict>().ok()))
}

/// A plain number, which has no Python code.
fn plain(number: &Bound<'_, PyAny>) -> Option<u64> {
    number.is_exact_instance_of::<PyInt>().then(|| number.extract().ok()).flatten()
}

/// The process of a worker that was forked.
fn process_of(iterator: &Bound<'_, PyAny>, worker: u32) -> PyResult<Option<u32>> {
    let py = iterator.py();
    let Some(workers) = attribute(iterator, intern!(py, "_workers"))? else { return Ok(None) };
    let Ok(workers) = workers.cast_exact::<PyList>() else { return Ok(None) };
    let Ok(process) = workers.get_item(worker as usize) else { return Ok(None) };
    // What `Process.pid` reads, which is a function in Python.
    let Some(started) = attribute(&process, intern!(py, "_popen"))? else { return Ok(None) };
    let method = attribute(&started, intern!(py, "method"))?;
    if !method.is_some_and(|method| method.eq(intern!(py, "fork")).unwrap_or_default()) {
        return Ok(None);
    }
    Ok(number(&started, intern!(py, "pid"))?.and_then(|process| u32::try_from(process).ok()))
}

/// Sets torch's class of iterators of DataLoaders with workers.
#[pyfunction]
fn set_loader_iterator(class: &Bound<'_, PyType>) {
    if LOADER_ITERATOR.load(Ordering::Relaxed).is_null() {
        LOADER_ITERATOR.store(class.clone().into_ptr(), Ordering::Relaxed);
    }
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_loader_iterator, module)?)
}
