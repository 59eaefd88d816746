//! Limits, observer and result of reading a pickle.

use std::fmt;

use super::heap::{Pickle, PickleHeap};
use crate::text_table::TextTable;

/// Limits of what may exist at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PickleLimits {
    /// Values on the stack and in containers.
    pub values: usize,
    /// Lists, tuples and dicts.
    pub containers: usize,
    /// Values that the pickle stores to refer to them again.
    pub memo: usize,
}

impl PickleLimits {
    /// Limits for a pickle that is read as a whole.
    pub(crate) const WHOLE: Self = Self { values: 1 << 24, containers: 1 << 21, memo: 1 << 22 };
}

/// Why a pickle was not read, and where (bytes).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RefusedPickle {
    pub offset: u64,
    pub what: String,
    /// Whether the pickle would run code.
    pub is_code: bool,
}

impl fmt::Display for RefusedPickle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {} of its pickle: {}", self.offset, self.what)
    }
}

/// The part of a pickle that was read before it ended or was refused.
#[derive(Debug)]
pub(crate) struct PartialPickle {
    /// The values, with open containers closed.
    pub pickle: Pickle,
    /// Bytes that were read.
    pub text_bytes: u64,
    pub stopped: Option<RefusedPickle>,
}

impl PartialPickle {
    /// Why the pickle was not read as a whole.
    pub(crate) fn problem(&self) -> Option<String> {
        let too_much = || (self.pickle.heap.texts.refused > 0).then(|| "it has more text than is read".to_owned());
        self.stopped.as_ref().map(ToString::to_string).or_else(too_much)
    }
}

/// Sees dicts as soon as they are filled.
pub(crate) trait DictWatcher {
    /// Called once, before anything is read.
    fn begin(&mut self, _texts: &mut TextTable) {}

    /// Called when a dict is filled. To return a number takes the dict out; the number replaces it, and where the pickle
    /// refers to the dict again, it is empty.
    fn filled(&mut self, _heap: &mut PickleHeap, _dict: u32) -> Option<u32> {
        None
    }

    /// Called from time to time.
    fn progress(&mut self) {}
}

impl DictWatcher for () {}
