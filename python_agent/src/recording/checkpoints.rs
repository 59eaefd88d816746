//! Checkpoints: how long the program saves, as a part of its step, and what. They are rare, so their rows wait behind a lock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use probe_proto::table::Time;
use probe_proto::tables::checkpoints;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::clock::unix_ns;
use super::policy::{self, Layer};
use super::program_errors;
use super::thread::{self, RECORD};
use crate::shared::{self, ENABLED, STEP};
use probe_trace::CHECKPOINTS;
use probe_trace::record::Kind;
use probe_trace::sink::Sink;

/// Rows that may wait for a drain, which comes ten times a second.
const MOST: usize = 4096;

/// A save that has ended.
#[derive(Debug)]
struct Saved {
    step: i64,
    unix_ns: i64,
    seconds: f64,
    kind: String,
    path: Option<String>,
    bytes: Option<i64>,
    error: Option<String>,
    thread: i64,
}

static WAITING: Mutex<(Vec<Saved>, u64)> = Mutex::new((Vec::new(), 0));
/// Distributed saves that are open on any thread: they call `torch.save` for each of their tensors, also on others.
static DISTRIBUTED: AtomicU32 = AtomicU32::new(0);

/// Moves the waiting rows into `sink`. For the background thread.
pub(super) fn drain(sink: &mut Sink) {
    let (waiting, dropped) = std::mem::take(&mut *shared::lock(&WAITING));
    if dropped > 0 {
        sink.dropped(CHECKPOINTS, "too many checkpoints", dropped);
    }
    for saved in waiting {
        let row = checkpoints::Row {
            step: saved.step,
            ts: Time(saved.unix_ns),
            duration: saved.seconds,
            kind: sink.strings.id(&saved.kind),
            path: saved.path.and_then(|path| sink.path(&path)),
            bytes: saved.bytes,
            error: saved.error.map(|error| sink.strings.id(&error)),
            thread: saved.thread,
        };
        sink.push(row);
    }
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
    let is_distributed = u32::from(kind != "torch.save");
    let (step, unix_ns, began) = (STEP.load(Ordering::Relaxed), unix_ns(), Instant::now());
    DISTRIBUTED.fetch_add(is_distributed, Ordering::Relaxed);
    thread::with(|state| state.open(&state.checkpoints, Kind::CheckpointBegin, 0));
    let result = save.call(args, Some(kwargs));
    thread::with(|state| state.close(&state.checkpoints, Kind::CheckpointEnd, 0, 0, 0));
    DISTRIBUTED.fetch_sub(is_distributed, Ordering::Relaxed);
    let seconds = began.elapsed().as_secs_f64();
    let known = after.call1((args, kwargs, noted)).and_then(|known| known.extract::<(Option<String>, Option<i64>)>());
    let (path, bytes) = match known {
        Ok(known) => known,
        Err(error) => {
            program_errors::swallow(py, "a checkpoint", Err(error));
            (None, None)
        }
    };
    let error = result.as_ref().err().map(|error| {
        error.get_type(py).name().map_or_else(|_| "an exception".to_owned(), |name| name.to_string_lossy().into_owned())
    });
    // SAFETY: gettid has no arguments and always succeeds.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    let bytes = bytes.filter(|_| error.is_none());
    let mut waiting = shared::lock(&WAITING);
    if waiting.0.len() < MOST {
        waiting.0.push(Saved { step, unix_ns, seconds, kind: kind.to_owned(), path, bytes, error, thread });
    } else {
        waiting.1 += 1;
    }
    drop(waiting);
    result
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_checkpoint, module)?)
}
