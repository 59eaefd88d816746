//! Collectives: the hooks that a process group calls before and after it issues one, and how completion is seen.
//!
//! gloo ends the RecordFunction range of an operation when the operation is done, on the thread that did it and without
//! Python: [`started`] and [`finished`]. Where that is not to be had, a future may say so ([`collective_done`]). NCCL's futures and
//! ranges end when the operation is enqueued, which is not completion, so there nothing is said.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::clock::ticks;
use super::cost;
use super::forward::beside_error;
use super::policy::{self, Layer};
use super::record::{Kind, Record};
use super::ring::Class;
use super::thread::{self, BESIDE, RECORD, ThreadState};
use crate::analysis::known::Learned;
use crate::analysis::names::Operation;
use crate::shared::{self, ENABLED};

/// Keys of operations, unique in this process; 0 is none.
static KEYS: AtomicU64 = AtomicU64::new(1);

/// What operations have in common, by id.
#[derive(Debug, Default)]
pub(super) struct Operations {
    ids: HashMap<(u32, &'static str, usize, bool), u64>,
    all: Vec<Operation>,
}

pub(super) static OPERATIONS: LazyLock<Mutex<Operations>> = LazyLock::new(Mutex::default);

/// What operations issued under this id have in common.
pub(crate) fn operation(id: u64) -> Option<Operation> {
    shared::lock(&OPERATIONS).all.get(id as usize).cloned()
}

/// All of them, by id.
pub(super) fn operations() -> Vec<Operation> {
    shared::lock(&OPERATIONS).all.clone()
}

/// torch.distributed's word for an operation that a hook names.
fn word(name: &str) -> &'static str {
    match name {
        "SEND" => "send",
        "RECV" => "recv",
        "BROADCAST" => "broadcast",
        "ALLREDUCE" => "all_reduce",
        "REDUCE" => "reduce",
        "ALLGATHER" => "all_gather",
        "REDUCE_SCATTER" => "reduce_scatter",
        "ALLTOALL" => "all_to_all",
        "BARRIER" => "barrier",
        "SCATTER" => "scatter",
        "GATHER" => "gather",
        "SPLIT" => "split_group",
        "NEW_WINDOW" => "new_window",
        "ALLREDUCE_COALESCED" => "all_reduce_coalesced",
        "ALLGATHER_BASE" => "all_gather_into_tensor",
        "ALLGATHER_COALESCED" => "all_gather_coalesced",
        "ALLGATHER_INTO_TENSOR_COALESCED" => "all_gather_into_tensor_coalesced",
        "REDUCE_SCATTER_BASE" => "reduce_scatter_tensor",
        "REDUCE_SCATTER_TENSOR_COALESCED" => "reduce_scatter_tensor_coalesced",
        "ALLTOALL_BASE" => "all_to_all_single",
        _ => "unknown",
    }
}

/// A watched process group: makes the hooks for it.
#[pyclass(frozen)]
#[derive(Debug)]
struct CollectiveGroup {
    id: u32,
    name: String,
    size: i32,
    /// Device type -> backend where there are several ("cpu" -> "gloo"); one entry with an empty device otherwise.
    backends: Vec<(String, String)>,
    issued: AtomicU64,
}

static GROUPS: AtomicU64 = AtomicU64::new(0);

#[pymethods]
impl CollectiveGroup {
    #[new]
    fn new(name: String, size: i32, backends: Vec<(String, String)>) -> Self {
        Self { id: GROUPS.fetch_add(1, Ordering::Relaxed) as u32, name, size, backends, issued: AtomicU64::new(0) }
    }

    /// `ProcessGroup.register_pre_hook`'s hook. Raises only on a thread that must not train.
    fn pre(&self, args: &Bound<'_, PyAny>) -> PyResult<()> {
        if !ENABLED.load(Ordering::Relaxed) {
            return Ok(());
        }
        thread::with(|state| {
            match state.mode.get() {
                RECORD if !policy::is_on(Layer::Collectives) => {}
                RECORD => {
                    let began = ticks();
                    super::swallow(args.py(), "recording a collective", self.issue_hooked(state, args));
                    cost::spent(began);
                }
                BESIDE => return Err(beside_error()),
                _ => {}
            }
            Ok(())
        })
    }

    /// `ProcessGroup.register_post_hook`'s hook. Returns the operation's key when the caller should have its future
    /// say when it is done, else 0.
    fn post(&self) -> u64 {
        thread::with(|state| {
            let key = state.collective.replace(0);
            if key == 0 || state.collective_timed.get() {
                return 0;
            }
            key
        })
    }

    /// Backends of the group.
    fn backends(&self) -> Vec<&str> {
        self.backends.iter().map(|(_, backend)| backend.as_str()).collect()
    }

    /// For patched functions (torch without hooks): an operation begins. Its key, or 0.
    fn issue(
        &self,
        operation: &str,
        async_op: bool,
        inputs: &Bound<'_, PyList>,
        outputs: &Bound<'_, PyList>,
    ) -> PyResult<u64> {
        if !ENABLED.load(Ordering::Relaxed) {
            return Ok(0);
        }
        thread::with(|state| match state.mode.get() {
            RECORD if !policy::is_on(Layer::Collectives) => Ok(0),
            RECORD => {
                let operation = KNOWN_WORDS.iter().find(|known| **known == operation).copied().unwrap_or("unknown");
                self.issue_described(state, operation, async_op, inputs, outputs)?;
                Ok(state.collective.replace(0))
            }
            BESIDE => Err(beside_error()),
            _ => Ok(0),
        })
    }
}

/// Operations that the fallback patches.
const KNOWN_WORDS: [&str; 14] = [
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "scatter",
    "gather",
    "send",
    "recv",
];

impl CollectiveGroup {
    fn issue_hooked(&self, state: &ThreadState, args: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = args.py();
        let name = args.getattr(pyo3::intern!(py, "name"))?.getattr(pyo3::intern!(py, "name"))?;
        let operation = word(&name.cast::<PyString>()?.to_cow()?);
        let async_op = args.getattr(pyo3::intern!(py, "async_op"))?.extract()?;
        let inputs = args.getattr(pyo3::intern!(py, "input_tensors"))?;
        let outputs = args.getattr(pyo3::intern!(py, "output_tensors"))?;
        self.issue_described(state, operation, async_op, inputs.cast::<PyList>()?, outputs.cast::<PyList>()?)
    }

    fn issue_described(
        &self,
        state: &ThreadState,
        operation: &'static str,
        async_op: bool,
        inputs: &Bound<'_, PyList>,
        outputs: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let bytes = bytes_of(inputs)?.max(bytes_of(outputs)?);
        let tensor = inputs.iter().chain(outputs.iter()).next();
        let id = self.describe(operation, async_op, tensor.as_ref())?;
        let key = KEYS.fetch_add(1, Ordering::Relaxed);
        let seq = self.issued.fetch_add(1, Ordering::Relaxed);
        // 54 bits: 30 of sequence number above 24 of description.
        let record = Record::new(Kind::Issue, seq << 24 | id & 0xff_ffff, ticks(), key, bytes);
        let recorded = state.instant(Class::Collective, record);
        state.collective.set(if recorded { key } else { 0 });
        state.collective_timed.set(false);
        Ok(())
    }

    /// The id of what this operation has in common with others like it.
    fn describe(&self, operation: &'static str, async_op: bool, tensor: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let dtype = match tensor {
            Some(tensor) => Some(tensor.getattr(pyo3::intern!(tensor.py(), "dtype"))?),
            None => None,
        };
        // torch keeps one object a dtype for good, so its address says which.
        let key = (self.id, operation, dtype.as_ref().map_or(0, |dtype| dtype.as_ptr() as usize), async_op);
        if let Some(id) = shared::lock(&OPERATIONS).ids.get(&key) {
            return Ok(*id);
        }
        let dtype = match dtype {
            Some(dtype) => Some(dtype.str()?.to_string().trim_start_matches("torch.").to_owned()),
            None => None,
        };
        let device = match tensor {
            Some(tensor) if self.backends.len() > 1 => tensor.getattr("device")?.getattr("type")?.extract()?,
            _ => String::new(),
        };
        let backend = self.backends.iter().find(|(at, _)| *at == device).or(self.backends.first());
        let operation = Operation {
            name: operation.into(),
            group_id: self.id,
            group_name: self.name.clone(),
            group_size: self.size,
            dtype,
            async_op,
            backend: backend.map_or_else(|| "unknown".to_owned(), |(_, backend)| backend.clone()),
        };
        let mut operations = shared::lock(&OPERATIONS);
        let id = operations.all.len() as u64;
        super::names::learned(&Learned::Operation(id, &operation));
        operations.all.push(operation);
        operations.ids.insert(key, id);
        Ok(id)
    }
}

fn bytes_of(tensors: &Bound<'_, PyList>) -> PyResult<u64> {
    let mut bytes = 0_u64;
    for tensor in tensors.iter() {
        bytes = bytes.saturating_add(tensor.getattr(pyo3::intern!(tensors.py(), "nbytes"))?.extract()?);
    }
    Ok(bytes)
}

/// The backend has begun to time an operation that this thread is issuing.
pub(super) fn started(state: &ThreadState, handle: u64) {
    let key = state.collective.get();
    if key != 0 && !state.collective_timed.replace(true) {
        state.instant(Class::Collective, Record::new(Kind::Started, 0, ticks(), key, handle));
    }
}

/// It is done, on whichever thread did it.
pub(super) fn finished(state: &ThreadState, handle: u64) {
    let failed = is_handling_exception();
    state.instant(Class::Collective, Record::new(Kind::Finished, u64::from(failed), ticks(), handle, 0));
}

/// `__cxa_get_globals`, the C++ ABI's own view of this thread's exceptions; null where it is not to be had.
static EXCEPTIONS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// `__cxa_eh_globals` of the Itanium C++ ABI.
#[repr(C)]
struct ExceptionGlobals {
    caught: *const c_void,
    uncaught: c_uint,
}

/// Whether this thread is in a C++ `catch` block: gloo ends the range of a failed operation inside one.
fn is_handling_exception() -> bool {
    let mut function = EXCEPTIONS.load(Ordering::Relaxed);
    if function.is_null() {
        // SAFETY: looks the symbol up in what is loaded.
        function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_get_globals".as_ptr()) };
        EXCEPTIONS.store(function, Ordering::Relaxed);
    }
    if function.is_null() {
        return false;
    }
    // SAFETY: the ABI's function of this name: no arguments, returns this thread's globals.
    unsafe {
        let globals = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const ExceptionGlobals>(function)();
        globals.as_ref().is_some_and(|globals| !globals.caught.is_null())
    }
}

/// Raises on a thread that must not speak with other ranks. For what speaks with them and has no hook.
#[pyfunction]
fn may_talk() -> PyResult<()> {
    thread::with(|state| if state.mode.get() == BESIDE { Err(beside_error()) } else { Ok(()) })
}

/// A future said that an operation is done.
#[pyfunction]
fn collective_done(key: u64, failed: bool) {
    thread::with(|state| {
        state.instant(Class::Collective, Record::new(Kind::Done, u64::from(failed), ticks(), key, 0));
    });
}

/// Nobody will say when an operation is done.
#[pyfunction]
fn collective_posted(key: u64) {
    thread::with(|state| {
        state.collective.set(0);
        state.instant(Class::Collective, Record::new(Kind::Posted, 1, ticks(), key, 0));
    });
}

/// The calling thread is about to wait for an operation.
#[pyfunction]
fn wait_begin() {
    let on = policy::is_on(Layer::Collectives);
    thread::with(|state| state.open_if(on, &state.waits, Class::Step, Kind::WaitBegin, 0));
}

/// It has waited.
#[pyfunction]
fn wait_end() {
    thread::with(|state| state.close(&state.waits, Kind::WaitEnd, 0, 0, 0));
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CollectiveGroup>()?;
    module.add_function(wrap_pyfunction!(may_talk, module)?)?;
    module.add_function(wrap_pyfunction!(collective_done, module)?)?;
    module.add_function(wrap_pyfunction!(wait_begin, module)?)?;
    module.add_function(wrap_pyfunction!(wait_end, module)?)?;
    module.add_function(wrap_pyfunction!(collective_posted, module)?)
}
