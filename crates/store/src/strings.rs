//! The strings of a connection, ready for text columns to be gathered from.
//!
//! Text is stored as ids (four bytes a row). A scan turns them into Arrow string views by gathering from the
//! [`Dictionary`], which shares its string data with every array made from it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, StringViewArray, StringViewBuilder};
use probe_proto::decode::{Malformed, ReceivedStrings};
use probe_proto::v1;

/// String data is in blocks of this size (bytes). The last one, which grows, is copied when new strings have come.
const BLOCK: u32 = 32 << 10;

/// The strings that a connection has sent so far.
#[derive(Debug)]
pub struct Strings {
    received: ReceivedStrings,
    builder: StringViewBuilder,
    current: Dictionary,
}

/// State that all dictionaries of a connection share. Their memory is counted once, however many segments have one, until
/// the last dictionary is dropped.
#[derive(Debug, Default)]
struct Lineage {
    bytes: AtomicUsize,
    /// The counter that includes `bytes`.
    total: OnceLock<Arc<AtomicUsize>>,
}

impl Drop for Lineage {
    fn drop(&mut self) {
        if let Some(total) = self.total.get() {
            total.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
        }
    }
}

impl Default for Strings {
    fn default() -> Self {
        let values = Arc::new(StringViewArray::from_iter_values([""; 0]));
        Self {
            received: ReceivedStrings::default(),
            builder: StringViewBuilder::new().with_fixed_block_size(BLOCK),
            current: Dictionary { lineage: Arc::default(), values },
        }
    }
}

impl Strings {
    /// Adds new entries: they must continue the table, or repeat existing entries word for word.
    pub fn extend(&mut self, strings: v1::Strings) -> Result<(), Malformed> {
        let known = self.received.values().len();
        let result = self.received.extend(strings);
        // Also after an error: entries before it were added.
        for value in &self.received.values()[known..] {
            self.builder.try_append_value(value).map_err(|error| Malformed::Strings(error.to_string()))?;
        }
        result
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.received.values().len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All strings so far.
    pub fn dictionary(&mut self) -> Dictionary {
        if self.current.values.len() < self.len() {
            self.current.values = Arc::new(self.builder.finish_cloned());
        }
        self.current.clone()
    }
}

/// Strings by id. A dictionary continues every older one of its lineage.
#[derive(Debug, Clone)]
pub struct Dictionary {
    lineage: Arc<Lineage>,
    values: Arc<StringViewArray>,
}

impl Dictionary {
    /// Whether ids mean the same in both.
    pub fn related(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.lineage, &other.lineage)
    }

    /// The longer of two related dictionaries.
    pub fn newer(&self, other: &Self) -> Self {
        if other.values.len() > self.values.len() { other.clone() } else { self.clone() }
    }

    pub fn values(&self) -> &StringViewArray {
        &self.values
    }

    /// The strings, to be shared.
    pub fn shared(&self) -> &Arc<StringViewArray> {
        &self.values
    }

    /// Adds the memory (bytes) to `total`, beyond what is counted already for older dictionaries of the connection.
    pub fn count(&self, total: &Arc<AtomicUsize>) {
        let total = self.lineage.total.get_or_init(|| Arc::clone(total));
        let bytes = self.values.get_buffer_memory_size();
        let before = self.lineage.bytes.fetch_max(bytes, Ordering::Relaxed);
        total.fetch_add(bytes.saturating_sub(before), Ordering::Relaxed);
    }
}
