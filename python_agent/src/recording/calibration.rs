//! Finds the offsets of the fields of a RecordFunction that callbacks read, by looking at its words while operations run whose
//! fields have known values.
//!
//! No header promises these offsets, so one is accepted only if exactly one word had the right value in each of several rounds.
//! A RecordFunction lies on the stack, and torch writes only some of its words. The others hold what earlier calls left there,
//! which may include a copy of the value that is searched for. So the stack is overwritten before each round, and the agent's own
//! code holds the value's complement only: functions save the registers of their callers on the stack.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::libtorch::{current_thread, name_of, peek};
use super::shim::{FLOAT, ShimTensor};
use super::torch_callbacks::{BACKWARD_FUNCTION, FUNCTION, RecordFunctionCallback, callback, with_callback};
use crate::shared;

/// How many words of a RecordFunction are searched; it is larger than this.
const SEARCHED_WORDS: usize = 40;
static SCANNED: [AtomicU64; SEARCHED_WORDS] = [const { AtomicU64::new(0) }; SEARCHED_WORDS];

/// Returns the result of `work()`, which runs on this thread with this callback registered and over an overwritten stack.
fn run_with_callback<T>(callback: RecordFunctionCallback, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    with_callback(callback, || {
        fill_stack(u64::MAX);
        work()
    })
}

/// Overwrites with this word what earlier calls left on the stack below the caller.
#[inline(never)]
fn fill_stack(word: u64) {
    const WORDS: usize = 8192;
    let mut words = [const { MaybeUninit::<u64>::uninit() }; WORDS];
    for filled in &mut words {
        // SAFETY: a word of an array of this function's own.
        unsafe { filled.as_mut_ptr().write_volatile(word) };
    }
    std::hint::black_box(&mut words);
}

/// For tests: fills the stack below the caller with this word, as earlier calls may have.
#[pyfunction]
fn leave_on_stack(word: u64) {
    fill_stack(word);
}

unsafe extern "C" fn scan(context: *mut *mut c_void, range: *const u8) -> *mut *mut c_void {
    // SAFETY: `context` is where the returned unique_ptr goes. The RecordFunction lies on the caller's stack with other frames
    // above it, so a read past its end still reads mapped memory.
    unsafe {
        *context = std::ptr::null_mut();
        for (index, word) in SCANNED.iter().enumerate() {
            word.store(range.add(index * 8).cast::<u64>().read_volatile(), Ordering::Relaxed);
        }
    }
    context
}

/// Which words of a RecordFunction have had the expected value of a field in every round so far.
struct WordCandidates([bool; SEARCHED_WORDS]);

impl WordCandidates {
    fn all() -> Self {
        Self([true; SEARCHED_WORDS])
    }

    /// Keeps those that have the value with this complement when the operation that `work()` runs in this scope begins.
    fn scan<T>(&mut self, scope: usize, complement: u64, work: impl FnOnce() -> PyResult<T>) -> PyResult<()> {
        SCANNED.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        run_with_callback(callback(scope, scan as *const c_void, std::ptr::null()), work)?;
        let complement = std::hint::black_box(complement);
        for (candidate, word) in self.0.iter_mut().zip(&SCANNED) {
            *candidate &= !word.load(Ordering::Relaxed) == complement;
        }
        Ok(())
    }

    /// The offset in bytes of the only one left. An error if there is none or are several.
    fn only(&self, what: &str) -> PyResult<usize> {
        let offsets: Vec<usize> =
            self.0.iter().enumerate().filter_map(|(index, candidate)| candidate.then_some(index * 8)).collect();
        match offsets[..] {
            [offset] if offset != 0 => Ok(offset),
            _ => Err(not_one(&offsets, what)),
        }
    }
}

/// Returns a value's complement. The value itself is left in no register that a function saves on the stack, because this function
/// returns before the search begins.
#[inline(never)]
fn complement_of(value: impl FnOnce() -> u64) -> u64 {
    !value()
}

fn not_one(offsets: &[usize], what: &str) -> PyErr {
    let count = offsets.len();
    PyRuntimeError::new_err(format!("{count} fields of RecordFunction look like {what}, at the offsets {offsets:?}"))
}

/// The offset of the sequence number in bytes. `operate()` runs one operation that autograd records on the calling thread. It is
/// run at several sequence numbers, and exactly one field must show them all.
pub(super) fn find_sequence(operate: &Bound<'_, PyAny>) -> PyResult<usize> {
    let mut candidates = WordCandidates::all();
    for gap in [7, 29, 3, 61] {
        for _ in 0..gap {
            operate.call0()?;
        }
        let sequence = complement_of(peek);
        candidates.scan(FUNCTION, sequence, || operate.call0())?;
    }
    candidates.only("its sequence number")
}

/// The offset in a node of the number of the thread that made it, in bytes. `operate()` is run on new threads, and exactly one
/// field of the nodes that it makes must show the thread. The nodes are called without autograd's engine, which must not start
/// in a process that may still fork.
pub(super) fn find_made_on(operate: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = operate.py();
    let mut candidates = WordCandidates::all();
    for _ in 0..3 {
        let operate = operate.clone().unbind();
        let made = move || Python::attach(|py| PyResult::Ok((complement_of(current_thread), operate.call0(py)?)));
        let made = py.detach(|| std::thread::Builder::new().spawn(made).map(std::thread::JoinHandle::join))?;
        let (thread, result) = made.map_err(|_| PyRuntimeError::new_err("a thread of the agent has failed"))??;
        let result = result.bind(py);
        let (node, gradient) = (result.getattr("grad_fn")?, result.call_method0("detach")?);
        candidates.scan(BACKWARD_FUNCTION, thread, || node.call1((gradient,)))?;
    }
    candidates.only("the thread that made a node")
}

/// Pairs of words that may be an ArrayRef of three inputs: their offset in bytes, and (pointer, pointer, tag, tag) of the first
/// two inputs.
static FOUND: Mutex<Vec<(usize, [u64; 4])>> = Mutex::new(Vec::new());

unsafe extern "C" fn scan_copy(context: *mut *mut c_void, range: *const u8) -> *mut *mut c_void {
    // SAFETY: as of the caller, torch.
    unsafe {
        scan(context, range);
        if name_of(range).is_none_or(|name| name.to_bytes() != b"aten::copy_") {
            return context;
        }
    }
    let mut found = shared::lock(&FOUND);
    for (index, pair) in SCANNED.windows(2).enumerate() {
        let (pointer, length) = (pair[0].load(Ordering::Relaxed) as usize, pair[1].load(Ordering::Relaxed));
        let near = pointer.is_multiple_of(8) && pointer.abs_diff(range as usize) < 4096;
        if length == 3 && near {
            // SAFETY: a RecordFunction lies on the stack among other frames, and this pointer is into those.
            let word = |byte: usize| unsafe { (pointer as *const u8).add(byte).cast::<u64>().read_volatile() };
            found.push((index * 8, [word(0), word(16), word(8) & 0xffff_ffff, word(24) & 0xffff_ffff]));
        }
    }
    context
}

/// A pair of tensors as Python sees it: the addresses of the destination and the source of a copy, and the source's bytes and
/// whether it is contiguous.
type TensorPair = (u64, u64, i64, bool);

/// The offset of the inputs in bytes, and the tag of an IValue that is a tensor. `copy(index)` copies between the two float32
/// tensors of a pair on this thread. Exactly one field must show all pairs, and torch's C shim must agree with Python about them.
pub(super) fn find_inputs(copy: &Bound<'_, PyAny>) -> PyResult<(usize, u32)> {
    let mut candidates: Option<Vec<(usize, u64)>> = None;
    for pair in 0..4 {
        shared::lock(&FOUND).clear();
        let at_copy = callback(FUNCTION, scan_copy as *const c_void, std::ptr::null()).with_inputs();
        let answer = run_with_callback(at_copy, || copy.call1((pair,)))?;
        let (to, from, bytes, contiguous) = answer.extract::<TensorPair>()?;
        // SAFETY: an at::Tensor is the address of what it refers to, and the tensors of the pairs live as long as `copy`.
        let tensor = unsafe { ShimTensor::of((&raw const from).cast()) };
        if !tensor.is_some_and(|tensor| tensor.is(bytes, FLOAT, contiguous)) {
            return Err(PyRuntimeError::new_err("torch's C shim does not describe a tensor as Python does"));
        }
        let found = std::mem::take(&mut *shared::lock(&FOUND));
        let of_the_pair = |(offset, [a, b, tag, other]): (usize, [u64; 4])| {
            ((a, b) == (to, from) && tag == other).then_some((offset, tag))
        };
        let of_the_pair: Vec<(usize, u64)> = found.into_iter().filter_map(of_the_pair).collect();
        candidates = Some(match candidates {
            None => of_the_pair,
            Some(before) => before.into_iter().filter(|candidate| of_the_pair.contains(candidate)).collect(),
        });
    }
    match candidates.unwrap_or_default()[..] {
        [(offset, tag)] => Ok((offset, tag as u32)),
        ref found => Err(not_one(&found.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), "its inputs")),
    }
}

/// Adds this file's function to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(leave_on_stack, module)?)
}
