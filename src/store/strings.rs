//! The strings of a connection, ready for text columns to be gathered from.
//!
//! Text is kept at rest as ids (four bytes a row); a scan turns them into Arrow string views by gathering from the
//! [`Dictionary`], which shares its string data with every array made from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, StringViewArray, StringViewBuilder};
use probe_proto::decode::{Malformed, ReceivedStrings};
use probe_proto::v1;

/// String data is kept in blocks of this size; the last, growing one is copied when new strings have come.
const BLOCK: u32 = 32 << 10;

/// What a connection has sent so far.
#[derive(Debug)]
pub struct Strings {
    received: ReceivedStrings,
    builder: StringViewBuilder,
    lineage: u64,
    current: Dictionary,
}

impl Default for Strings {
    fn default() -> Self {
        static LINEAGES: AtomicU64 = AtomicU64::new(1);
        let lineage = LINEAGES.fetch_add(1, Ordering::Relaxed);
        Self {
            received: ReceivedStrings::default(),
            builder: StringViewBuilder::new().with_fixed_block_size(BLOCK),
            lineage,
            current: Dictionary { lineage, values: Arc::new(StringViewArray::from_iter_values([""; 0])) },
        }
    }
}

impl Strings {
    /// Takes new entries: they must continue the table, or repeat what is there word for word.
    pub fn extend(&mut self, strings: v1::Strings) -> Result<(), Malformed> {
        let known = self.received.values().len();
        let result = self.received.extend(strings);
        // Also after an error: what was taken before it is there.
        for value in &self.received.values()[known..] {
            self.builder.try_append_value(value).map_err(|error| Malformed::Strings(error.to_string()))?;
        }
        result
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.received.values().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them as they are now.
    pub(crate) fn dictionary(&mut self) -> Dictionary {
        if self.current.values.len() < self.len() {
            self.current = Dictionary { lineage: self.lineage, values: Arc::new(self.builder.finish_cloned()) };
        }
        self.current.clone()
    }
}

/// Strings by id. One of a lineage continues every older one of it.
#[derive(Debug, Clone)]
pub(crate) struct Dictionary {
    lineage: u64,
    values: Arc<StringViewArray>,
}

impl Dictionary {
    /// Whether ids of one mean the same in the other.
    pub(crate) fn related(&self, other: &Self) -> bool {
        self.lineage == other.lineage
    }

    /// The longer of two related ones.
    pub(crate) fn newer(&self, other: &Self) -> Self {
        if other.values.len() > self.values.len() { other.clone() } else { self.clone() }
    }

    /// The strings.
    pub(crate) fn values(&self) -> &StringViewArray {
        &self.values
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.values.get_buffer_memory_size()
    }
}
