//! Events of a history, taken out of a pickle while it is read: there may be millions, each of fixed size.

use std::collections::HashMap;

use super::form::{AllocatorEntry, TextOrNone, is_users};
use crate::pickle::{DictWatcher, PickleHeap, Value};
use crate::records::UNKNOWN;
use crate::text_table::{NONE, TextTable};

/// Most events that are kept.
const MAX_EVENTS: usize = 1 << 21;
/// Most work of parsing an event: 16 for a value, and 1 for a byte of text.
const MAX_WORK: u64 = 1 << 20;
/// Longest text that becomes a cell (bytes).
const MAX_TEXT: usize = 4096;
/// The number of an event that is not kept.
const DROPPED: u32 = u32::MAX;

/// The allocator's actions.
pub(super) const ACTIONS: &[&str] = &[
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "annotate",
];

/// An event. Texts are numbers of the history's table; missing values are UNKNOWN.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredEntry {
    pub action: u8,
    pub line: i32,
    pub address: i64,
    pub size: i64,
    pub stream: i64,
    /// Nanoseconds.
    pub ts: i64,
    pub device_free: i64,
    pub file: u32,
    pub function: u32,
    pub metadata: u32,
}

impl StoredEntry {
    pub(super) fn action(&self) -> &'static str {
        ACTIONS.get(usize::from(self.action)).copied().unwrap_or_default()
    }
}

/// Events in the order in which they were read.
pub(crate) struct AllocatorHistory<'p> {
    pub texts: TextTable,
    records: Vec<StoredEntry>,
    /// The number of events past the bound.
    pub more: u64,
    /// The number of events that could not be parsed.
    pub unreadable: u64,
    progress: &'p mut dyn FnMut(),
    /// Numbers of the keys that are looked for.
    action: u32,
    frames: u32,
    filename: u32,
    /// Files by number: whether they are the program's own.
    users: HashMap<u32, bool>,
}

impl<'p> AllocatorHistory<'p> {
    pub(crate) fn new(progress: &'p mut dyn FnMut()) -> Self {
        Self {
            texts: TextTable::default(),
            records: Vec::new(),
            more: 0,
            unreadable: 0,
            progress,
            action: NONE,
            frames: NONE,
            filename: NONE,
            users: HashMap::new(),
        }
    }

    /// The number of events that were kept.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// The event with this number; None where it was not kept.
    pub(super) fn get(&self, number: u32) -> Option<&StoredEntry> {
        self.records.get(number as usize)
    }

    /// Keeps an event and returns its number; an entry that is no valid event is counted and gives None.
    pub(super) fn add(&mut self, entry: &AllocatorEntry<'_>) -> Option<u32> {
        if self.records.len() >= MAX_EVENTS {
            self.more += 1;
            return None;
        }
        let record = self.record(entry)?;
        self.records.push(record);
        Some(self.records.len() as u32 - 1)
    }

    /// Converts an entry to a record; an entry that is no valid event is counted and gives None.
    fn record(&mut self, entry: &AllocatorEntry<'_>) -> Option<StoredEntry> {
        let action = entry.action.0.and_then(|name| ACTIONS.iter().position(|action| *action == name));
        let Some(action) = action else {
            self.unreadable += 1;
            return None;
        };
        let texts = &mut self.texts;
        let mut text = |TextOrNone(text): TextOrNone<'_>| {
            texts.optional(text.filter(|text| !text.is_empty() && text.len() <= MAX_TEXT))
        };
        let unknown = |value: Option<i64>| value.unwrap_or(UNKNOWN);
        let frame = entry.frames.0;
        let is_oom = ACTIONS[action] == "oom";
        Some(StoredEntry {
            action: action as u8,
            line: frame.and_then(|frame| i32::try_from(frame.line.0?).ok()).unwrap_or(i32::MIN),
            address: unknown(entry.addr.0.filter(|_| !is_oom)),
            size: unknown(entry.size.0.filter(|size| *size >= 0)),
            stream: unknown(entry.stream.0),
            ts: unknown(entry.time_us.0.and_then(|time| time.checked_mul(1000))),
            // Very old snapshots have this number as the address.
            device_free: unknown(entry.device_free.0.or(entry.addr.0).filter(|_| is_oom)),
            file: frame.map_or(NONE, |frame| text(frame.filename)),
            function: frame.map_or(NONE, |frame| text(frame.name)),
            metadata: text(entry.user_metadata),
        })
    }

    /// The innermost frame of a stack that is the program's own.
    fn user_frame(&mut self, heap: &PickleHeap, stack: u32) -> Option<usize> {
        let (filename, users) = (self.filename, &mut self.users);
        heap.items(stack).iter().position(|frame| {
            let Value::Dict(frame) = frame else { return false };
            let pairs = heap.items(*frame).chunks_exact(2);
            let file = pairs.filter(|pair| pair[0] == Value::Text(filename)).find_map(|pair| match pair[1] {
                Value::Text(file) => Some(file),
                _ => None,
            });
            let Some(file) = file else { return false };
            *users.entry(file).or_insert_with(|| heap.text(file).is_some_and(is_users))
        })
    }
}

impl DictWatcher for AllocatorHistory<'_> {
    fn begin(&mut self, texts: &mut TextTable) {
        self.action = texts.number("action");
        self.frames = texts.number("frames");
        self.filename = texts.number("filename");
    }

    fn filled(&mut self, heap: &mut PickleHeap, dict: u32) -> Option<u32> {
        let (mut stack, mut is_event) = (None, false);
        for pair in heap.items(dict).chunks_exact(2) {
            match pair {
                [Value::Text(key), Value::List(list)] if *key == self.frames => stack = Some(*list),
                [Value::Text(key), Value::Text(_)] if *key == self.action => is_event = true,
                _ => {}
            }
        }
        if let Some(stack) = stack {
            // A stack is most of an event's values, and its events and blocks share it.
            let frame_index = self.user_frame(heap, stack);
            heap.keep_one(stack, frame_index);
        }
        if !is_event {
            return None;
        }
        let kept = match heap.parse::<AllocatorEntry<'_>>(Value::Dict(dict), MAX_WORK) {
            Ok(entry) => self.add(&entry),
            Err(_) => {
                self.unreadable += 1;
                None
            }
        };
        Some(kept.unwrap_or(DROPPED))
    }

    fn progress(&mut self) {
        (self.progress)();
    }
}
