//! torch's RecordFunction callbacks: autograd nodes, optimizer steps, and gloo's completion of collectives.
//!
//! The functions are C++ symbols of libtorch_cpu.so that no header promises to keep, found with `dlsym`. So: only for
//! torch versions on the Python side's list, only on x86-64 (how a small C++ object is returned differs elsewhere), and
//! only when the calibration of the one private field, the sequence number, gives exactly one answer.
//!
//! The callback of ranges is there all the time, except in some backward passes ([`ranges_in_passes`]);
//! [`ENABLED`](crate::shared::ENABLED) makes it pass. Those of nodes and operators are there only in steps that have them
//! ([`GlobalCallback`](super::torch_callbacks::GlobalCallback)).

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::autograd_passes::{FIRST_ELSEWHERE, LAST_ELSEWHERE, NODE_SEEN, NODES, WATCHED};
use super::boundary::DETAIL;
use super::clock::ticks;
use super::libtorch::{self, name_of, symbol};
use super::optimizer::OPTIMIZERS;
use super::thread::{self, RECORD, SUSPENSIONS, TESTING};
use super::torch_callbacks::{NODE_CALLBACK, RANGE_CALLBACK};
use super::{calibration, completion, device, optimizer, profiled_ranges, ranges_in_passes, spans};
use crate::shared::ENABLED;
use probe_trace::record::{RecordKind, RecordTable, RingRecord};

/// Offset in bytes of the sequence number in a RecordFunction; 0: not known.
static SEQUENCE: AtomicUsize = AtomicUsize::new(0);
/// Offset in bytes, in the RecordFunction of an autograd node, of the number of the thread that made the node. Sequence numbers
/// are counted on each thread.
static MADE_ON: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn node_start(context: *mut *mut c_void, range: *const u8) -> *mut *mut c_void {
    // SAFETY: `context` is the memory for the returned unique_ptr, and `range` a RecordFunction, whose fields are where
    // calibration saw them.
    let (sequence, made_on) = unsafe {
        *context = std::ptr::null_mut();
        let field = |offset: &AtomicUsize| range.add(offset.load(Ordering::Relaxed)).cast::<u64>().read();
        (field(&SEQUENCE), field(&MADE_ON))
    };
    thread::with(|state| {
        let outermost = state.nodes.depth() == 0;
        state.nodes.open(|| {
            if !NODES.load(Ordering::Relaxed) || !ENABLED.load(Ordering::Relaxed) || state.mode.get() != RECORD {
                return false;
            }
            if SUSPENSIONS.load(Ordering::Relaxed) != 0 {
                return false;
            }
            let now = ticks();
            if outermost {
                NODE_SEEN.store(true, Ordering::Relaxed);
                if state.backward.depth() == 0 {
                    let _ = FIRST_ELSEWHERE.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
                } else if state.first_node.get() == 0 {
                    state.first_node.set(now);
                }
            }
            if !DETAIL.load(Ordering::Relaxed) {
                return false;
            }
            // A node that accumulates a gradient has no sequence number, and is part of the node before it up to its end.
            let mark = device::mark_if(outermost && sequence != u64::MAX);
            let begun = state.begin(
                RecordTable::TorchTrace,
                RingRecord::new(RecordKind::NodeStart, 0, now, sequence, made_on).marked(mark),
            );
            if !begun {
                device::take_back(mark);
            }
            begun
        });
    });
    context
}

unsafe extern "C" fn node_end(_range: *const u8, _context: *mut c_void) {
    thread::with(|state| {
        let recorded = state.nodes.close();
        let outermost = state.nodes.depth() == 0;
        if !recorded && !outermost {
            return;
        }
        let now = ticks();
        if outermost {
            if state.backward.depth() > 0 {
                state.last_node.set(now);
            } else {
                LAST_ELSEWHERE.fetch_max(now, Ordering::Relaxed);
            }
        }
        if recorded {
            state.end(RingRecord::new(RecordKind::NodeEnd, 0, now, 0, 0).marked(device::mark_if(outermost)));
        }
    });
}

/// The user ranges that the callback distinguishes.
enum UserRange<'a> {
    Optimizer(&'a [u8]),
    Gloo,
    Test,
    Named(&'a [u8]),
    Other,
}

unsafe fn range_of<'a>(range: *const u8) -> UserRange<'a> {
    // SAFETY: as of the caller.
    let Some(name) = (unsafe { name_of(range) }) else { return UserRange::Other };
    let name = name.to_bytes();
    if let Some(class) = name.strip_prefix(b"Optimizer.step#") {
        UserRange::Optimizer(class.strip_suffix(b".step").unwrap_or(class))
    } else if name.starts_with(b"gloo:") {
        UserRange::Gloo
    } else if name == TEST_RANGE {
        UserRange::Test
    } else {
        UserRange::Named(name)
    }
}

/// Whether it is a range of a process group, which may end it on a thread of its own.
fn is_of_collective(range: &UserRange<'_>) -> bool {
    match range {
        UserRange::Gloo => true,
        UserRange::Named(name) => {
            [&b"nccl:"[..], b"mpi:", b"ucc:", b"xccl:"].iter().any(|prefix| name.starts_with(prefix))
        }
        _ => false,
    }
}

const TEST_RANGE: &[u8] = b"probe_agent.self_test";

unsafe extern "C" fn range_start(context: *mut *mut c_void, range: *const u8) -> *mut *mut c_void {
    // SAFETY: `context` is the memory for the returned unique_ptr.
    unsafe { *context = std::ptr::null_mut() };
    // SAFETY: torch gave us `range`.
    let what = unsafe { range_of(range) };
    profiled_ranges::range_began(range, is_of_collective(&what));
    if ENABLED.load(Ordering::Relaxed) {
        match what {
            UserRange::Optimizer(class) if OPTIMIZERS.load(Ordering::Relaxed) => {
                thread::with(|state| optimizer::begin(state, class))
            }
            UserRange::Gloo => thread::with(|state| completion::started(state, range as u64)),
            UserRange::Named(name) => thread::with(|state| spans::range_began(state, range as u64, name)),
            _ => {}
        }
    }
    context
}

unsafe extern "C" fn range_end(range: *const u8, _context: *mut c_void) {
    let is_over = profiled_ranges::range_ended(range);
    // SAFETY: torch gave us `range`.
    match unsafe { range_of(range) } {
        UserRange::Optimizer(class) if OPTIMIZERS.load(Ordering::Relaxed) => {
            thread::with(|state| optimizer::end(state, class))
        }
        UserRange::Gloo if ENABLED.load(Ordering::Relaxed) => {
            thread::with(|state| completion::finished(state, range as u64))
        }
        UserRange::Test => thread::with(|state| {
            if state.mode.get() == TESTING {
                state.test_ranges.set(state.test_ranges.get() + 1);
            }
        }),
        UserRange::Named(_) if is_over => thread::with(|state| spans::range_ended(state, range as u64)),
        UserRange::Named(_) => thread::with(|state| spans::give_up(state, range as u64)),
        _ => {}
    }
}

/// Finds the functions of torch that callbacks and the slot need. Error where torch lacks one.
#[pyfunction]
fn find_record_function() -> PyResult<()> {
    libtorch::find()?;
    thread::with(thread::ThreadState::know_torch_thread);
    Ok(())
}

/// Finds the fields of the sequence number and of the thread that made a node, and returns their offsets. `operate()` runs
/// one operation that autograd records on the calling thread.
#[pyfunction]
fn calibrate_record_function(operate: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
    let sequence = calibration::find_sequence(operate)?;
    let made_on = calibration::find_made_on(operate)?;
    SEQUENCE.store(sequence, Ordering::Relaxed);
    MADE_ON.store(made_on, Ordering::Relaxed);
    Ok((sequence, made_on))
}

/// Adds the callbacks, if they aren't there. Called after [`calibrate_record_function`].
#[pyfunction]
fn add_record_function() -> PyResult<()> {
    if SEQUENCE.load(Ordering::Relaxed) == 0 {
        return Err(PyRuntimeError::new_err("the sequence number of RecordFunction has not been found"));
    }
    if !ranges_in_passes::is_installed() {
        NODE_CALLBACK.prepare(node_start as *const c_void, node_end as *const c_void)?;
        RANGE_CALLBACK.prepare(range_start as *const c_void, range_end as *const c_void)?;
        NODE_CALLBACK.put_in();
        ranges_in_passes::install();
        WATCHED.store(true, Ordering::Relaxed);
        profiled_ranges::find(symbol);
    }
    Ok(())
}

/// Removes the callbacks. Ranges that are open still end through them.
#[pyfunction]
fn remove_record_function() {
    NODE_CALLBACK.take_out();
    ranges_in_passes::uninstall();
}

/// Whether the program's ranges are seen and can be ended: otherwise no capture may begin.
#[pyfunction]
fn sees_ranges() -> bool {
    ranges_in_passes::is_installed() && profiled_ranges::are_found()
}

/// Chooses what the callbacks record.
#[pyfunction]
fn use_record_function(nodes: bool, optimizers: bool) {
    NODES.store(nodes, Ordering::Relaxed);
    OPTIMIZERS.store(optimizers, Ordering::Relaxed);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(find_record_function, module)?)?;
    module.add_function(wrap_pyfunction!(calibrate_record_function, module)?)?;
    module.add_function(wrap_pyfunction!(add_record_function, module)?)?;
    module.add_function(wrap_pyfunction!(remove_record_function, module)?)?;
    module.add_function(wrap_pyfunction!(sees_ranges, module)?)?;
    module.add_function(wrap_pyfunction!(use_record_function, module)?)
}
