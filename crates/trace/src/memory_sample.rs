//! The memory that a device's allocator reports, while its records come.

use super::persist::persist;
use crate::payload::MEMORY_VALUES as COUNT;

/// A device's values so far, two for each record.
#[derive(Debug, Default)]
pub(super) struct MemorySample {
    /// The part that comes next; 0: no sample has begun.
    pub(super) next: usize,
    pub(super) device: u64,
    pub(super) ts: u64,
    pub(super) values: [u64; COUNT],
}

persist!(MemorySample { next, device, ts, values });
