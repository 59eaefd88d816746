//! The form of a snapshot of old and new versions of torch. Fields that newer versions add are skipped.

use std::fmt;

use probe_common::user_code::is_user_code;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};

use crate::lenient::{BoundedList, LenientNumber};

/// Most segments of a snapshot, and most blocks of a segment.
const MAX_SEGMENTS: usize = 1 << 18;
const MAX_BLOCKS: usize = 1 << 20;
/// Most devices.
const MAX_DEVICES: usize = 1024;
/// Most events of a device.
const MAX_EVENTS: usize = 1 << 22;
/// Most steps that our agent adds to a snapshot.
const MAX_STEPS: usize = 1 << 16;

/// The result of `torch.cuda.memory._snapshot()`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MemorySnapshot<'a> {
    #[serde(borrow)]
    pub segments: Option<BoundedList<SnapshotSegment<'a>, MAX_SEGMENTS>>,
    /// The history of each device.
    #[serde(borrow)]
    pub device_traces: Option<BoundedList<BoundedList<HistoryEntry<'a>, MAX_EVENTS>, MAX_DEVICES>>,
    pub host_segments: ListLength,
    pub host_traces: ListLength,
    pub external_annotations: ListLength,
    /// Number, begin and end (nanoseconds from 1970) of steps: `probe_agent/capture/memory.py` adds them.
    #[serde(rename = "probe_agent.steps")]
    pub steps: Option<BoundedList<(i64, i64, i64), MAX_STEPS>>,
}

/// A snapshot of torch 1.13, which has only segments.
pub(super) type Segments<'a> = BoundedList<SnapshotSegment<'a>, MAX_SEGMENTS>;

/// Memory that the allocator holds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotSegment<'a> {
    pub device: LenientNumber,
    pub address: LenientNumber,
    pub total_size: LenientNumber,
    pub stream: LenientNumber,
    #[serde(borrow)]
    pub segment_type: TextOrNone<'a>,
    pub segment_pool_id: Option<(LenientNumber, LenientNumber)>,
    pub is_expandable: Option<bool>,
    #[serde(borrow)]
    pub blocks: Option<BoundedList<SnapshotBlock<'a>, MAX_BLOCKS>>,
}

/// A part of a segment.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotBlock<'a> {
    pub address: LenientNumber,
    pub size: LenientNumber,
    pub requested_size: LenientNumber,
    #[serde(borrow)]
    pub state: TextOrNone<'a>,
    #[serde(borrow)]
    pub frames: UserFrame<'a>,
    /// Allocations of the block before torch 2.1, the newest first.
    #[serde(borrow)]
    pub history: Option<BoundedList<BlockAllocation<'a>, 1>>,
}

/// An allocation in snapshots before torch 2.1.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BlockAllocation<'a> {
    pub addr: LenientNumber,
    pub real_size: LenientNumber,
    #[serde(borrow)]
    pub frames: UserFrame<'a>,
}

impl<'a> SnapshotBlock<'a> {
    fn owner(&self) -> Option<&BlockAllocation<'a>> {
        self.history.as_ref()?.items.first()
    }

    /// The number of bytes that the program requested.
    pub(super) fn requested(&self) -> Option<i64> {
        self.requested_size.0.or_else(|| self.owner()?.real_size.0)
    }

    pub(super) fn address(&self) -> Option<i64> {
        self.address.0.or_else(|| self.owner()?.addr.0)
    }

    pub(super) fn frame(&self) -> Option<SnapshotFrame<'a>> {
        self.frames.0.or_else(|| self.owner()?.frames.0)
    }
}

/// An action of the allocator.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AllocatorEntry<'a> {
    #[serde(borrow)]
    pub action: TextOrNone<'a>,
    pub addr: LenientNumber,
    pub device_free: LenientNumber,
    pub size: LenientNumber,
    pub stream: LenientNumber,
    /// Microseconds from 1970; since torch 2.1.
    pub time_us: LenientNumber,
    #[serde(borrow)]
    pub frames: UserFrame<'a>,
    #[serde(borrow)]
    pub user_metadata: TextOrNone<'a>,
}

/// An entry of a history.
#[derive(Debug, Clone)]
pub(crate) enum HistoryEntry<'a> {
    /// An event that was taken out while the file was read, with its number.
    Taken(u32),
    Whole(Box<AllocatorEntry<'a>>),
}

/// A line of a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotFrame<'a> {
    #[serde(borrow)]
    pub filename: TextOrNone<'a>,
    pub line: LenientNumber,
    #[serde(borrow)]
    pub name: TextOrNone<'a>,
}

/// The innermost line of a stack that belongs to the program's own Python code.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UserFrame<'a>(pub Option<SnapshotFrame<'a>>);

/// Text; None for a value of another type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TextOrNone<'a>(pub Option<&'a str>);

/// The length of a list.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ListLength(pub u64);

/// Suffixes of files that are not Python: stacks may have frames of C++.
const NATIVE: &[&str] = &[".cpp", ".cc", ".c", ".h", ".hpp", ".cu", ".cuh", ".inc", ".S", ".so"];

/// Whether a file in a stack is the program's own Python code.
pub(super) fn is_users(file: &str) -> bool {
    !file.is_empty() && file != "??" && !NATIVE.iter().any(|ending| file.ends_with(ending)) && is_user_code(file)
}

impl<'de: 'a, 'a> Deserialize<'de> for TextOrNone<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = TextOrNone<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<TextOrNone<'de>, E> {
                Ok(TextOrNone(Some(text)))
            }
            fn visit_borrowed_bytes<E>(self, _: &'de [u8]) -> Result<TextOrNone<'de>, E> {
                Ok(TextOrNone(None))
            }
            fn visit_i64<E>(self, _: i64) -> Result<TextOrNone<'de>, E> {
                Ok(TextOrNone(None))
            }
            fn visit_unit<E>(self) -> Result<TextOrNone<'de>, E> {
                Ok(TextOrNone(None))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for HistoryEntry<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Events;
        impl<'de> Visitor<'de> for Events {
            type Value = HistoryEntry<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event of the allocator")
            }
            fn visit_u32<E>(self, number: u32) -> Result<HistoryEntry<'de>, E> {
                Ok(HistoryEntry::Taken(number))
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<HistoryEntry<'de>, M::Error> {
                AllocatorEntry::deserialize(MapAccessDeserializer::new(map))
                    .map(|entry| HistoryEntry::Whole(Box::new(entry)))
            }
        }
        deserializer.deserialize_any(Events)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for UserFrame<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Frames;
        impl<'de> Visitor<'de> for Frames {
            type Value = UserFrame<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a stack: a list of frames")
            }
            fn visit_unit<E>(self) -> Result<UserFrame<'de>, E> {
                Ok(UserFrame(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<UserFrame<'de>, A::Error> {
                while let Some(frame) = list.next_element::<SnapshotFrame<'de>>()? {
                    if frame.filename.0.is_some_and(is_users) {
                        while list.next_element::<IgnoredAny>()?.is_some() {}
                        return Ok(UserFrame(Some(frame)));
                    }
                }
                Ok(UserFrame(None))
            }
        }
        deserializer.deserialize_any(Frames)
    }
}

impl<'de> Deserialize<'de> for ListLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = ListLength;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_unit<E>(self) -> Result<ListLength, E> {
                Ok(ListLength(0))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ListLength, A::Error> {
                let mut count = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(ListLength(count))
            }
        }
        deserializer.deserialize_any(Items)
    }
}

#[cfg(test)]
mod tests {
    use super::is_users;

    #[test]
    fn frames_of_torch_and_of_other_languages_are_not_the_program_s() {
        assert!(is_users("/home/me/train.py") && is_users("<ipython-input-3-1>"));
        for other in
            ["", "??", "/build/c10/cuda/CUDACachingAllocator.cpp", "/x/site-packages/torch/nn/modules/linear.py"]
        {
            assert!(!is_users(other), "{other}");
        }
    }
}
