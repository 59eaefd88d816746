//! Computes the bytes allocated and reserved after each event of a history, backwards from the segments at the end.

use super::form::SnapshotSegment;
use super::history::StoredEntry;
use crate::records::{UNKNOWN, known};

/// Bytes at one time; UNKNOWN where they are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeldBytes {
    /// Bytes that the program requested and did not free.
    pub allocated: i64,
    /// Bytes that the allocator holds of the device.
    pub reserved: i64,
}

impl HeldBytes {
    pub(super) const NOT_KNOWN: Self = Self { allocated: UNKNOWN, reserved: UNKNOWN };
}

/// The bytes in a device's segments.
pub(super) fn at_end<'a>(segments: impl Iterator<Item = &'a SnapshotSegment<'a>>) -> HeldBytes {
    let (mut allocated, mut reserved) = (Some(0_i64), Some(0_i64));
    for segment in segments {
        reserved = sum(reserved, segment.total_size.0);
        for block in segment.blocks.iter().flat_map(|blocks| &blocks.items) {
            if block.state.0 == Some("active_allocated") {
                allocated = sum(allocated, block.requested().or(block.size.0));
            }
        }
        if segment.blocks.as_ref().is_none_or(|blocks| blocks.more > 0) {
            allocated = None;
        }
    }
    HeldBytes { allocated: allocated.unwrap_or(UNKNOWN), reserved: reserved.unwrap_or(UNKNOWN) }
}

fn sum(sum: Option<i64>, more: Option<i64>) -> Option<i64> {
    sum?.checked_add(more?)
}

/// The bytes that an event adds to those allocated and to those reserved.
fn change(record: &StoredEntry) -> (i64, i64) {
    let size = known(record.size).unwrap_or(0);
    match record.action() {
        "alloc" => (size, 0),
        "free_requested" => (-size, 0),
        "segment_alloc" | "segment_map" => (0, size),
        "segment_free" | "segment_unmap" => (0, -size),
        _ => (0, 0),
    }
}

/// The bytes held after each event. A sum that would be negative somewhere is unknown everywhere: events are missing.
pub(super) fn held_after_each<'a>(
    records: impl DoubleEndedIterator<Item = &'a StoredEntry>,
    end: HeldBytes,
) -> Vec<HeldBytes> {
    let mut now = end;
    let before = |held: i64, added: i64| {
        known(held).and_then(|held| held.checked_sub(added)).filter(|held| *held >= 0).unwrap_or(UNKNOWN)
    };
    let held = records.rev().map(|record| {
        let after = now;
        let (allocated, reserved) = change(record);
        now = HeldBytes { allocated: before(now.allocated, allocated), reserved: before(now.reserved, reserved) };
        after
    });
    let mut held: Vec<HeldBytes> = held.collect();
    held.reverse();
    for held in &mut held {
        held.allocated = if now.allocated == UNKNOWN { UNKNOWN } else { held.allocated };
        held.reserved = if now.reserved == UNKNOWN { UNKNOWN } else { held.reserved };
    }
    held
}
