//! What the allocator of a device says, as its records come.

use super::keep::keep;
use crate::payload::MEMORY_VALUES as COUNT;

/// A device's values on their way, two a record.
#[derive(Debug, Default)]
pub(super) struct MemorySample {
    /// The part that comes next; 0: none is on its way.
    pub(super) next: usize,
    pub(super) device: u64,
    pub(super) ts: u64,
    pub(super) values: [u64; COUNT],
}

keep!(MemorySample { next, device, ts, values });
