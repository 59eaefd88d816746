//! Finds where a RecordFunction keeps what callbacks read of it, by looking at its words while things run of which that is known.
//!
//! No header promises where these fields are, so one is taken only where exactly one word has been what it should in each of
//! several rounds. A RecordFunction lies on the stack, and torch writes only some of its words: in the others is what earlier
//! calls have left there, and a copy of what is looked for may be among that. So the stack is overwritten before each round.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::libtorch::{current_thread, name_of, peek};
use super::shim::{FLOAT, Tensor};
use super::torch_callbacks::{BACKWARD_FUNCTION, Callback, FUNCTION, callback, with_callback};
use crate::shared;

/// Words of a RecordFunction that are looked at; it is larger than this.
const LOOKED_AT: usize = 40;
static SCANNED: [AtomicU64; LOOKED_AT] = [const { AtomicU64::new(0) }; LOOKED_AT];

/// What `work()` says, while this callback looks at what it runs on this thread.
fn look<T>(callback: Callback, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    fill_stack(u64::MAX);
    with_callback(callback, work)
}

/// Writes this word over what earlier calls have left on the stack below the caller.
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

/// For tests: leaves this word everywhere on the stack below the caller, as earlier calls may.
#[pyfunction]
fn leave_on_stack(word: u64) {
    fill_stack(word);
}

unsafe extern "C" fn scan(context: *mut *mut c_void, range: *const u8) -> *mut *mut c_void {
    // SAFETY: the place for the returned unique_ptr; a RecordFunction, which lies on the caller's stack, below other
    // frames, so that reading past its end still reads memory.
    unsafe {
        *context = std::ptr::null_mut();
        for (place, word) in SCANNED.iter().enumerate() {
            word.store(range.add(place * 8).cast::<u64>().read_volatile(), Ordering::Relaxed);
        }
    }
    context
}

/// Which words of a RecordFunction have been all that they should be if they were a certain field.
struct Fits([bool; LOOKED_AT]);

impl Fits {
    fn all() -> Self {
        Self([true; LOOKED_AT])
    }

    /// Looks at them at the beginning of what `work()` runs in this scope.
    fn scan<T>(&mut self, scope: usize, expected: u64, work: impl FnOnce() -> PyResult<T>) -> PyResult<()> {
        SCANNED.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        look(callback(scope, scan as *const c_void, std::ptr::null()), work)?;
        for (fits, word) in self.0.iter_mut().zip(&SCANNED) {
            *fits &= word.load(Ordering::Relaxed) == expected;
        }
        Ok(())
    }

    /// The offset of the only one left.
    fn only(&self, what: &str) -> PyResult<usize> {
        let places: Vec<usize> =
            self.0.iter().enumerate().filter_map(|(place, fits)| fits.then_some(place * 8)).collect();
        match places[..] {
            [place] if place != 0 => Ok(place),
            _ => Err(not_one(&places, what)),
        }
    }
}

fn not_one(places: &[usize], what: &str) -> PyErr {
    let count = places.len();
    PyRuntimeError::new_err(format!("{count} fields of RecordFunction look like {what}, at {places:?}"))
}

/// Where the sequence number is, in bytes. `operate()` runs one operation that autograd records on the calling thread. Run a
/// few times at different sequence numbers, exactly one field must show them all.
pub(super) fn find_sequence(operate: &Bound<'_, PyAny>) -> PyResult<usize> {
    let mut fits = Fits::all();
    for gap in [7, 29, 3, 61] {
        for _ in 0..gap {
            operate.call0()?;
        }
        let expected = peek();
        fits.scan(FUNCTION, expected, || operate.call0())?;
    }
    fits.only("its sequence number")
}

/// Where a node has the number of the thread that made it: `operate()` is run on threads of their own, and one field of the
/// nodes that they made must show each. Nodes are called here without the engine, which must not start in a process that may
/// still fork.
pub(super) fn find_made_on(operate: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = operate.py();
    let mut fits = Fits::all();
    for _ in 0..3 {
        let operate = operate.clone().unbind();
        let made = move || Python::attach(|py| PyResult::Ok((current_thread(), operate.call0(py)?)));
        let made = py.detach(|| std::thread::Builder::new().spawn(made).map(std::thread::JoinHandle::join))?;
        let (thread, result) = made.map_err(|_| PyRuntimeError::new_err("a thread of the agent has failed"))??;
        let result = result.bind(py);
        let (node, gradient) = (result.getattr("grad_fn")?, result.call_method0("detach")?);
        fits.scan(BACKWARD_FUNCTION, thread, || node.call1((gradient,)))?;
    }
    fits.only("the thread that made a node")
}

/// Words that may be an ArrayRef of three inputs, by their place in bytes, and of the first two of these the pointers and the
/// tags: (pointer, pointer, tag, tag).
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
    for (place, pair) in SCANNED.windows(2).enumerate() {
        let (pointer, length) = (pair[0].load(Ordering::Relaxed) as usize, pair[1].load(Ordering::Relaxed));
        let near = pointer.is_multiple_of(8) && pointer.abs_diff(range as usize) < 4096;
        if length == 3 && near {
            // SAFETY: a RecordFunction lies on the stack among other frames, and this points into those.
            let word = |byte: usize| unsafe { (pointer as *const u8).add(byte).cast::<u64>().read_volatile() };
            found.push((place * 8, [word(0), word(16), word(8) & 0xffff_ffff, word(24) & 0xffff_ffff]));
        }
    }
    context
}

/// What Python says of a pair of tensors: the addresses of what is copied to and from, and of the latter its bytes and
/// whether it is contiguous.
type Pair = (u64, u64, i64, bool);

/// Where the inputs are, in bytes, and what an IValue that is a tensor has behind its pointer. `copy(place)` copies between two
/// float32 tensors on this thread, the `place`th pair; exactly one field must show all pairs, and torch's C shim say of them
/// what Python says.
pub(super) fn find_inputs(copy: &Bound<'_, PyAny>) -> PyResult<(usize, u32)> {
    let mut places: Option<Vec<(usize, u64)>> = None;
    for pair in 0..4 {
        shared::lock(&FOUND).clear();
        let at_copy = callback(FUNCTION, scan_copy as *const c_void, std::ptr::null()).with_inputs();
        let said = look(at_copy, || copy.call1((pair,)))?;
        let (to, from, bytes, contiguous) = said.extract::<Pair>()?;
        // SAFETY: an at::Tensor is the address of what it refers to, and the tensors of the pairs live as long as `copy`.
        let tensor = unsafe { Tensor::of((&raw const from).cast()) };
        if !tensor.is_some_and(|tensor| tensor.is(bytes, FLOAT, contiguous)) {
            return Err(PyRuntimeError::new_err("torch's C shim says of a tensor what is not so"));
        }
        let found = std::mem::take(&mut *shared::lock(&FOUND));
        let fits = |(place, [a, b, tag, other]): (usize, [u64; 4])| {
            ((a, b) == (to, from) && tag == other).then_some((place, tag))
        };
        let fits: Vec<(usize, u64)> = found.into_iter().filter_map(fits).collect();
        places = Some(match places {
            None => fits,
            Some(before) => before.into_iter().filter(|place| fits.contains(place)).collect(),
        });
    }
    match places.unwrap_or_default()[..] {
        [(place, tag)] => Ok((place, tag as u32)),
        ref found => Err(not_one(&found.iter().map(|(place, _)| *place).collect::<Vec<_>>(), "its inputs")),
    }
}

/// Adds this file's function to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(leave_on_stack, module)?)
}
