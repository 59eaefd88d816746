//! Checkpoints: how long the program saves, as a part of its step, and what. A row is a record of the ring like any other, so it
//! is kept where the process ends right after the save.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::clock::ticks;
use super::policy::{self, Layer};
use super::thread::{self, RECORD};
use super::{module_names, program_errors};
use crate::shared::{self, ENABLED, STEP};
use probe_trace::payload::{FAILED, SAVED_ERROR, SAVED_FILE, SAVED_STEP, SAVERS, UNKNOWN_BYTES};
use probe_trace::record::{RecordKind, RingRecord};
use probe_trace::symbol_table::{LearnedName, NameTable};

/// Most names of files that get a number.
const MAX_FILES: usize = 4096;
/// Most texts that get a number: files, and classes of exceptions. They have 14 bits of a record.
const MAX_TEXTS: usize = 2 * MAX_FILES;

/// Names of files and of classes of exceptions, by number. Saves are rare and slow, so a lock and a search do no harm.
pub(super) static TEXTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Distributed saves that are open on any thread: they call `torch.save` for each of their tensors, also on others.
static DISTRIBUTED: AtomicU32 = AtomicU32::new(0);

/// Forgets in a forked child the saves of the parent's other threads.
pub(super) fn begin_anew() {
    DISTRIBUTED.store(0, Ordering::Relaxed);
}

/// One more than the number of a text; 0 without a text, and for a new text if there are `most` texts already.
fn number(text: Option<String>, most: usize) -> u64 {
    let Some(text) = text else { return 0 };
    let mut texts = shared::lock(&TEXTS);
    let known = texts.iter().position(|known| *known == text);
    let id = known.unwrap_or(texts.len());
    if known.is_none() {
        if id >= most {
            return 0;
        }
        module_names::learned(&LearnedName::Saved(id as u64, &text));
        texts.push(text);
    }
    id as u64 + 1
}

/// The text that has this number.
pub(super) fn text(id: u64) -> Option<String> {
    shared::lock(&TEXTS).get(id as usize).cloned()
}

/// All texts that have a number.
pub(super) fn texts() -> NameTable {
    shared::lock(&TEXTS).iter().cloned().enumerate().map(|(id, text)| (id as u64, text)).collect()
}

/// A save: what `save(*args, **kwargs)` returns or raises. `before(args, kwargs)` is called before it, and its result is
/// passed to `after(args, kwargs, result)`, which returns the path's last part and the bytes written.
#[pyfunction]
fn run_checkpoint<'py>(
    save: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
    kind: &str,
    before: &Bound<'py, PyAny>,
    after: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let wanted = thread::with(|state| {
        ENABLED.load(Ordering::Relaxed)
            && state.mode.get() == RECORD
            && state.checkpoints.depth() == 0
            && DISTRIBUTED.load(Ordering::Relaxed) == 0
            && policy::is_on(Layer::Checkpoints)
    });
    if !wanted {
        return save.call(args, Some(kwargs));
    }
    let py = save.py();
    let noted = match before.call1((args, kwargs)) {
        Ok(noted) => Some(noted),
        Err(error) => {
            program_errors::swallow(py, "a checkpoint", Err(error));
            None
        }
    };
    let saver = SAVERS.iter().position(|saver| *saver == kind).unwrap_or_default();
    let is_distributed = u32::from(kind == SAVERS[1]);
    let (step, began) = (STEP.load(Ordering::Relaxed), ticks());
    DISTRIBUTED.fetch_add(is_distributed, Ordering::Relaxed);
    thread::with(|state| state.open(&state.checkpoints, RecordKind::CheckpointBegin, 0));
    let result = save.call(args, Some(kwargs));
    let ended = ticks();
    thread::with(|state| state.close(&state.checkpoints, RecordKind::CheckpointEnd, 0, 0, 0));
    // A save within which a forked child has begun to record is not counted any more.
    let _ = DISTRIBUTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(is_distributed));
    let known = after.call1((args, kwargs, noted)).and_then(|known| known.extract::<(Option<String>, Option<u64>)>());
    let (path, bytes) = match known {
        Ok(known) => known,
        Err(error) => {
            program_errors::swallow(py, "a checkpoint", Err(error));
            (None, None)
        }
    };
    let error = result.as_ref().err().and_then(|error| Some(error.get_type(py).name().ok()?.to_string_lossy().into()));
    let bytes = bytes.filter(|bytes| *bytes < UNKNOWN_BYTES && result.is_ok()).unwrap_or(UNKNOWN_BYTES);
    let failed = if result.is_err() { FAILED } else { 0 };
    let payload = saver as u64 | failed | number(error, MAX_TEXTS) << SAVED_ERROR | (step as u64) << SAVED_STEP;
    let file = number(path, MAX_FILES);
    thread::with(|state| {
        if state.mode.get() == RECORD && ENABLED.load(Ordering::Relaxed) {
            state.instant(RingRecord::new(RecordKind::Saved, payload, ended, began, bytes | file << SAVED_FILE));
        }
    });
    result
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_checkpoint, module)?)
}
