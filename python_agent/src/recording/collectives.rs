//! Collectives: the hooks that a process group calls before and after it issues one. How their completion is seen:
//! [`super::completion`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::clock::ticks;
use super::cost;
use super::device;
use super::forward::beside_error;
use super::libtorch::HiddenFromModes;
use super::policy::{self, Layer};
use super::program_errors;
use super::scalar;
use super::thread::{self, BESIDE, RECORD, ThreadState};
use crate::shared::{self, ENABLED};
use probe_trace::record::{RecordKind, RingRecord};
use probe_trace::symbol_lookup::CollectiveOperation;
use probe_trace::symbol_table::LearnedName;

/// Keys of operations, unique in this process; 0 is none.
static KEYS: AtomicU64 = AtomicU64::new(1);

/// What operations have in common, by id.
#[derive(Debug, Default)]
pub(super) struct OperationRegistry {
    ids: HashMap<(u32, &'static str, usize, bool), u64>,
    all: Vec<CollectiveOperation>,
}

pub(super) static OPERATIONS: LazyLock<Mutex<OperationRegistry>> = LazyLock::new(Mutex::default);

/// What all operations issued under this id have in common.
pub(crate) fn operation(id: u64) -> Option<CollectiveOperation> {
    shared::lock(&OPERATIONS).all.get(id as usize).cloned()
}

/// What operations have in common, for all ids in order.
pub(super) fn operations() -> Vec<CollectiveOperation> {
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

/// Cached words by the number of torch's enumeration: to find a name pybind compares a value with all others, which is two thirds
/// of the instructions of a hook.
static WORDS: [OnceLock<&str>; 64] = [const { OnceLock::new() }; 64];

/// The word for a value of torch's enumeration of operations.
fn word_of(value: &Bound<'_, PyAny>) -> PyResult<&'static str> {
    let entry = value.extract::<usize>().ok().and_then(|number| WORDS.get(number));
    if let Some(known) = entry.and_then(OnceLock::get) {
        return Ok(known);
    }
    let name = value.getattr(pyo3::intern!(value.py(), "name"))?;
    let found = word(&name.cast::<PyString>()?.to_cow()?);
    Ok(entry.map_or(found, |entry| entry.get_or_init(|| found)))
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
    /// Operations issued on it since it was made, recorded or not: the number of the next one.
    issued: AtomicU64,
    /// Whether messages between two ranks are among them, which the other ranks of the group don't count.
    has_messages: AtomicBool,
    /// Called with the key of an operation and the arguments of its post hook, if its future has to report when it is done.
    follow: Py<PyAny>,
}

static GROUPS: AtomicU64 = AtomicU64::new(0);

#[pymethods]
impl CollectiveGroup {
    /// `issued`: torch's own count of operations issued on the group before it was watched. `follow(key, args)` makes the future
    /// of an operation report when it is done.
    #[new]
    fn new(name: String, size: i32, backends: Vec<(String, String)>, issued: u64, follow: Py<PyAny>) -> Self {
        let id = GROUPS.fetch_add(1, Ordering::Relaxed) as u32;
        let (issued, has_messages) = (AtomicU64::new(issued), AtomicBool::new(false));
        Self { id, name, size, backends, issued, has_messages, follow }
    }

    /// `ProcessGroup.register_pre_hook`'s hook. Raises only on a thread that must not train.
    fn pre(&self, args: &Bound<'_, PyAny>) -> PyResult<()> {
        if !ENABLED.load(Ordering::Relaxed) {
            return Ok(());
        }
        thread::with(|state| {
            match state.mode.get() {
                RECORD if policy::is_on(Layer::Collectives) => {
                    let began = ticks();
                    program_errors::swallow(args.py(), "recording a collective", self.issue_hooked(state, args));
                    cost::add_rare(began);
                }
                BESIDE => return Err(beside_error()),
                // Numbers go on: ranks compare them, and one may record where another does not.
                _ => drop(self.issued.fetch_add(1, Ordering::Relaxed)),
            }
            Ok(())
        })
    }

    /// Whether ranks of the group may have issued different numbers of operations: some were messages between two ranks.
    fn has_messages(&self) -> bool {
        self.has_messages.load(Ordering::Relaxed)
    }

    /// `ProcessGroup.register_post_hook`'s hook.
    fn post(&self, args: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = thread::with(|state| {
            let key = state.collective.replace(0);
            if state.collective_timed.get() { 0 } else { key }
        });
        if key != 0 {
            self.follow.call1(args.py(), (key, args))?;
        }
        Ok(())
    }

    /// Backends of the group.
    fn backends(&self) -> Vec<&str> {
        self.backends.iter().map(|(_, backend)| backend.as_str()).collect()
    }

    /// Records, for patched functions (torch without hooks), that an operation is issued, after `issued` others by torch's own
    /// count: patched functions don't see all operations. Returns its key; 0 where it is not recorded.
    fn issue(
        &self,
        operation: &str,
        async_op: bool,
        issued: u64,
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
                self.issued.fetch_max(issued, Ordering::Relaxed);
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
        let operation = word_of(&args.getattr(pyo3::intern!(py, "name"))?)?;
        if matches!(operation, "send" | "recv") {
            self.has_messages.store(true, Ordering::Relaxed);
        }
        let async_op = args.getattr(pyo3::intern!(py, "async_op"))?.extract()?;
        let inputs = args.getattr(pyo3::intern!(py, "input_tensors"))?.cast_into::<PyList>()?;
        // The outputs are the inputs: reading them would make a list of the same tensors, and compute their sizes again.
        let in_place = matches!(operation, "all_reduce" | "all_reduce_coalesced" | "broadcast") && !inputs.is_empty();
        let outputs = match in_place {
            true => PyList::empty(py),
            false => args.getattr(pyo3::intern!(py, "output_tensors"))?.cast_into::<PyList>()?,
        };
        self.issue_described(state, operation, async_op, &inputs, &outputs)
    }

    fn issue_described(
        &self,
        state: &ThreadState,
        operation: &'static str,
        async_op: bool,
        inputs: &Bound<'_, PyList>,
        outputs: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let _hidden = HiddenFromModes::new();
        let bytes = bytes_of(inputs)?.max(bytes_of(outputs)?);
        let tensor = inputs.iter().chain(outputs.iter()).next();
        let id = self.describe(operation, async_op, tensor.as_ref())?;
        let key = KEYS.fetch_add(1, Ordering::Relaxed);
        let seq = self.issued.fetch_add(1, Ordering::Relaxed);
        let on_stream = !async_op && self.is_on_streams();
        let mark = device::mark_if(on_stream);
        // 54 bits: 30 of sequence number above 24 of description.
        let record = RingRecord::new(RecordKind::Issue, seq << 24 | id & 0xff_ffff, ticks(), key, bytes).marked(mark);
        let recorded = state.instant(record);
        if !recorded {
            device::take_back(mark);
        }
        state.collective.set(if recorded { key } else { 0 });
        state.collective_timed.set(false);
        state.collective_on_stream.set(recorded && on_stream);
        Ok(())
    }

    /// Whether its operations run on a device, so that a thread's stream waits for them and the thread does not.
    fn is_on_streams(&self) -> bool {
        self.backends.iter().any(|(_, backend)| backend == "nccl")
    }

    /// The id of what this operation has in common with others like it.
    fn describe(&self, operation: &'static str, async_op: bool, tensor: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let dtype = match tensor {
            Some(tensor) => Some(tensor.getattr(pyo3::intern!(tensor.py(), "dtype"))?),
            None => None,
        };
        // torch keeps one object for each dtype for good, so its address identifies the dtype.
        let key = (self.id, operation, dtype.as_ref().map_or(0, |dtype| dtype.as_ptr() as usize), async_op);
        if let Some(id) = shared::lock(&OPERATIONS).ids.get(&key) {
            return Ok(*id);
        }
        let dtype = match dtype {
            Some(dtype) => Some(scalar::dtype_name(&dtype)?),
            None => None,
        };
        let device = match tensor {
            Some(tensor) if self.backends.len() > 1 => tensor.getattr("device")?.getattr("type")?.extract()?,
            _ => String::new(),
        };
        let backend = self.backends.iter().find(|(at, _)| *at == device).or(self.backends.first());
        let operation = CollectiveOperation {
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
        super::module_names::learned(&LearnedName::Operation(id, &operation));
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

/// Raises on a thread that must not communicate with other ranks. For communication that has no hook.
#[pyfunction]
fn may_talk() -> PyResult<()> {
    thread::with(|state| if state.mode.get() == BESIDE { Err(beside_error()) } else { Ok(()) })
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CollectiveGroup>()?;
    module.add_function(wrap_pyfunction!(may_talk, module)?)
}
