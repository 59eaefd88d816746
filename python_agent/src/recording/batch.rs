//! The size of a batch: its bytes, its samples, and how much of it is padding. Only plain tensors in plain containers are examined,
//! whose attributes run no Python code.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{ffi, intern};

use super::attributes::{attribute, number};
use super::libtorch::HiddenFromModes;
use super::{padding, shape};

/// Items of a batch that are examined; a batch of more has no bytes.
const MAX_ITEMS: usize = 64;
/// One batch of this many is searched for padding, the first of an epoch among them.
const PADDING_EVERY: u64 = 8;

/// `collections.UserDict`, whose content is a plain dictionary (batches of tokenizers are of a subclass); kept alive.
static USER_DICT: AtomicPtr<ffi::PyObject> = AtomicPtr::new(std::ptr::null_mut());

/// The iterator whose batches have their samples along the first dimension of the item at [`ITEM`].
static ITERATOR: AtomicU64 = AtomicU64::new(0);
static ITEM: AtomicUsize = AtomicUsize::new(0);

/// The size of a batch; None for what can't be found cheaply.
#[derive(Debug, Default)]
pub(super) struct BatchSize {
    pub(super) bytes: Option<u64>,
    pub(super) samples: Option<u32>,
    /// The share of positions of sequences that are padding.
    pub(super) padding: Option<f64>,
}

/// What the items of a batch are.
#[derive(Debug)]
struct BatchItems {
    /// The number of items so far.
    count: usize,
    bytes: Option<u64>,
    /// The first dimension of each item; None where it is no tensor, or has no dimensions.
    first_dimensions: [Option<u32>; MAX_ITEMS],
    padding: WantedPadding,
}

/// The padding of the first item that has sequences.
#[derive(Debug, Clone, Copy)]
enum WantedPadding {
    NotWanted,
    /// No item had sequences so far. The batch size of the loader is known where it has one.
    NotFound(Option<u64>),
    Found(f64),
}

impl BatchSize {
    /// The size of `batch`, which `iterator` of a DataLoader returned (None: another iterable's), with this index in its epoch.
    ///
    /// # Errors
    /// An error of the program, such as Ctrl-C.
    pub(super) fn of(
        batch: &Bound<'_, PyAny>,
        iterator: Option<&Bound<'_, PyAny>>,
        index: Option<u64>,
    ) -> PyResult<Self> {
        let padding = if index.is_some_and(|index| index.is_multiple_of(PADDING_EVERY)) {
            WantedPadding::NotFound(iterator.map(batch_size).transpose()?.flatten())
        } else {
            WantedPadding::NotWanted
        };
        let items = BatchItems::of(batch, padding);
        if index == Some(0) {
            // Another iterator may have the address of one that is gone.
            ITERATOR.store(0, Ordering::Relaxed);
        }
        let padding = if let WantedPadding::Found(share) = items.padding { Some(share) } else { None };
        Ok(Self { bytes: items.bytes, samples: items.samples(iterator)?, padding })
    }
}

impl BatchItems {
    fn of(batch: &Bound<'_, PyAny>, padding: WantedPadding) -> Self {
        let mut items = Self { count: 0, bytes: Some(0), first_dimensions: [None; MAX_ITEMS], padding };
        let inner = user_dict(batch);
        let object = inner.as_ref().unwrap_or(batch).as_ptr();
        let _hidden = HiddenFromModes::new();
        // SAFETY: the GIL is held, `object` is alive, and containers hand out borrowed items that they keep alive: nothing
        // that runs in between (getters of a plain tensor) changes them. No exception is set here, and none is left.
        unsafe {
            if shape::is_tensor(object) {
                items.add(object);
            } else if ffi::PyTuple_Check(object) != 0 {
                let count = ffi::PyTuple_Size(object);
                (0..count).take(MAX_ITEMS + 1).for_each(|index| items.add(ffi::PyTuple_GetItem(object, index)));
            } else if ffi::PyList_Check(object) != 0 {
                let count = ffi::PyList_Size(object);
                (0..count).take(MAX_ITEMS + 1).for_each(|index| items.add(ffi::PyList_GetItem(object, index)));
            } else if ffi::PyDict_Check(object) != 0 {
                let (mut position, mut value) = (0, std::ptr::null_mut());
                while items.count <= MAX_ITEMS
                    && ffi::PyDict_Next(object, &raw mut position, std::ptr::null_mut(), &raw mut value) != 0
                {
                    items.add(value);
                }
            }
        }
        items.bytes = items.bytes.filter(|_| (1..=MAX_ITEMS).contains(&items.count));
        items
    }

    /// Adds an item. One too many is only counted.
    ///
    /// # Safety
    /// `item` is alive or NULL, and the GIL is held.
    unsafe fn add(&mut self, item: *mut ffi::PyObject) {
        let index = self.count;
        self.count += 1;
        let Some(first_dimension) = self.first_dimensions.get_mut(index) else { return };
        // What is looked at may begin a garbage collection, whose finalizers may change the container.
        // SAFETY: `item` is alive, or NULL with an exception set where there is none any more.
        let Some(kept) = (unsafe { Bound::from_borrowed_ptr_or_opt(Python::assume_attached(), item) }) else {
            // SAFETY: the GIL is held.
            unsafe { ffi::PyErr_Clear() };
            return;
        };
        // SAFETY: `item` is alive, and asked for its shape and size only where it is a plain tensor.
        unsafe {
            if !shape::is_tensor(item) {
                self.bytes = None;
                return;
            }
            *first_dimension = shape::first_dimension(item);
            if let WantedPadding::NotFound(batch_size) = self.padding
                && let Some(share) = padding::share(&kept, batch_size)
            {
                self.padding = WantedPadding::Found(share);
            }
            self.bytes = match (self.bytes, shape::integer(item, c"nbytes")) {
                (Some(sum), Some(bytes)) => sum.checked_add(bytes),
                _ => None,
            };
        }
    }

    /// The number of samples: the first dimension of the tensors. Where that differs among them (boxes of all images beside the
    /// images, a sequence beside its lengths), it is that of the tensor whose first dimension is the loader's batch size, and of
    /// the same one in a batch that is smaller, as the last of an epoch is.
    fn samples(&self, iterator: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u32>> {
        let mut known = self.first_dimensions.iter().flatten();
        let first = known.next().copied();
        if known.all(|other| Some(*other) == first) {
            return Ok(first);
        }
        let Some(iterator) = iterator else { return Ok(first) };
        let Some(batch_size) = batch_size(iterator)?.and_then(|size| u32::try_from(size).ok()) else {
            return Ok(first);
        };
        let address = iterator.as_ptr() as u64;
        if ITERATOR.load(Ordering::Relaxed) == address {
            return Ok(self.first_dimensions.get(ITEM.load(Ordering::Relaxed)).copied().flatten());
        }
        let mut fitting = self.first_dimensions.iter().enumerate().filter(|(_, size)| **size == Some(batch_size));
        let Some((item, _)) = fitting.next() else { return Ok(None) };
        // Where several fit, one may do so by chance.
        if fitting.next().is_none() {
            ITEM.store(item, Ordering::Relaxed);
            ITERATOR.store(address, Ordering::Relaxed);
        }
        Ok(Some(batch_size))
    }
}

/// The batch size of the sampler that a DataLoader's iterator takes its indices from, also behind a sampler that repeats another.
fn batch_size(iterator: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    let py = iterator.py();
    let Some(sampler) = attribute(iterator, intern!(py, "_index_sampler"))? else { return Ok(None) };
    if let Some(size) = number(&sampler, intern!(py, "batch_size"))? {
        return Ok(Some(size));
    }
    let Some(repeated) = attribute(&sampler, intern!(py, "sampler"))? else { return Ok(None) };
    number(&repeated, intern!(py, "batch_size"))
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
    module.add_function(wrap_pyfunction!(set_user_dict, module)?)
}
