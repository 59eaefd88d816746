//! The strings of a connection, ready for text columns to be gathered from.
//!
//! Text is stored as ids (four bytes a row). A scan turns them into Arrow string views by gathering from the
//! [`StringDictionary`], which shares its string data with every array made from it. A connection has one dictionary, which all its
//! segments share. If each segment had its own, of when it was sealed, all these versions would be kept as long as their rows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use arrow::array::{Array, StringViewArray, StringViewBuilder};
use probe_proto::decode::{Malformed, ReceivedStrings};
use probe_proto::v1;

/// String data is in blocks of this size (bytes). The last one, which grows, is copied when new strings have come.
const BLOCK: u32 = 32 << 10;

/// The strings that a connection has sent so far.
#[derive(Debug)]
pub struct StringReceiver {
    received: ReceivedStrings,
    builder: StringViewBuilder,
    dictionary: StringDictionary,
}

/// The strings of a connection, and their memory, which is counted until the last segment that needs them is dropped.
#[derive(Debug)]
struct ConnectionStrings {
    /// Strings by id; replaced by a longer array when new ones have come.
    values: ArcSwap<StringViewArray>,
    bytes: AtomicUsize,
    /// The counter that includes `bytes`.
    total: OnceLock<Arc<AtomicUsize>>,
}

impl Drop for ConnectionStrings {
    fn drop(&mut self) {
        if let Some(total) = self.total.get() {
            total.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
        }
    }
}

impl Default for StringReceiver {
    fn default() -> Self {
        let values = ArcSwap::from_pointee(StringViewArray::from_iter_values([""; 0]));
        let strings = ConnectionStrings { values, bytes: AtomicUsize::new(0), total: OnceLock::new() };
        Self {
            received: ReceivedStrings::default(),
            builder: StringViewBuilder::new().with_fixed_block_size(BLOCK),
            dictionary: StringDictionary(Arc::new(strings)),
        }
    }
}

impl StringReceiver {
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

    /// The connection's dictionary, which has all strings so far.
    pub fn dictionary(&mut self) -> StringDictionary {
        let values = &self.dictionary.0.values;
        if values.load().len() < self.len() {
            values.store(Arc::new(self.builder.finish_cloned()));
        }
        self.dictionary.clone()
    }
}

/// The strings of a connection by id, also those that come later. An id always means the same string.
#[derive(Debug, Clone)]
pub struct StringDictionary(Arc<ConnectionStrings>);

impl StringDictionary {
    /// Whether both are of one connection, so that ids mean the same.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The strings that the connection has sent so far.
    pub fn values(&self) -> Arc<StringViewArray> {
        self.0.values.load_full()
    }

    /// Adds the memory (bytes) to `total`, beyond what is counted there already for the connection.
    pub fn count(&self, total: &Arc<AtomicUsize>) {
        let total = self.0.total.get_or_init(|| Arc::clone(total));
        let bytes = self.0.values.load().get_buffer_memory_size();
        let before = self.0.bytes.fetch_max(bytes, Ordering::Relaxed);
        total.fetch_add(bytes.saturating_sub(before), Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_s_dictionary_keeps_no_strings_of_its_own() {
        let mut strings = StringReceiver::default();
        let mut more = |first, text: &str| {
            strings.extend(v1::Strings { first, values: vec![text.to_owned()] }).unwrap();
            strings.dictionary()
        };
        let of_first_segment = more(0, "a");
        let first = Arc::downgrade(&of_first_segment.values());
        let of_second_segment = more(1, "b");
        assert!(of_first_segment.is_same(&of_second_segment));
        assert_eq!(of_first_segment.values().iter().flatten().collect::<Vec<_>>(), ["a", "b"]);
        assert!(first.upgrade().is_none(), "what the first segment had is kept by nothing");
    }
}
