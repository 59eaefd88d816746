//! How a pickle is read: within which limits, who looks on, and what comes of it.

use super::heap::{Heap, Pickle};
use crate::text_table::TextTable;

/// What there may be at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Values on the stack and in containers.
    pub values: usize,
    /// Lists, tuples and dicts.
    pub containers: usize,
    /// Values that the pickle keeps to name them again.
    pub memo: usize,
}

impl Limits {
    /// Of a pickle that is read as a whole.
    pub(super) const WHOLE: Self = Self { values: 1 << 24, containers: 1 << 21, memo: 1 << 22 };
}

/// Why a pickle was not read, and where (bytes).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub offset: u64,
    pub what: String,
    /// It would run something.
    pub is_code: bool,
}

/// What was read before a pickle ended, or was refused.
#[derive(Debug)]
pub(crate) struct Partial {
    /// What was open is closed.
    pub pickle: Pickle,
    /// Bytes that were read.
    pub text_bytes: u64,
    pub stopped: Option<Refused>,
}

/// Sees dicts as soon as they are filled.
pub(crate) trait Watch {
    /// Called once, before anything is read.
    fn begin(&mut self, _texts: &mut TextTable) {}

    /// A dict was filled. A number means that it is taken out, and stands for it from now on: where the pickle names it
    /// again, it is empty.
    fn filled(&mut self, _heap: &mut Heap, _dict: u32) -> Option<u32> {
        None
    }

    /// Called now and then.
    fn progress(&mut self) {}
}

impl Watch for () {}
