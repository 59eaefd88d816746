//! A table of texts that many events share: each is stored once, up to a bound.

use std::collections::HashMap;
use std::sync::Arc;

/// Most bytes of all texts.
const MAX_BYTES: usize = 64 << 20;
/// Most texts.
const MAX_TEXTS: usize = 2 << 20;

/// The number for no text.
pub(crate) const NONE: u32 = u32::MAX;

/// Texts by number.
#[derive(Debug, Default)]
pub(crate) struct TextTable {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
    bytes: usize,
    /// Texts that were past the bound.
    pub refused: u64,
}

impl TextTable {
    /// The number of `text`. Past the bound, a new text is counted and gets [`NONE`].
    pub(crate) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        if self.bytes + text.len() > MAX_BYTES || self.texts.len() >= MAX_TEXTS {
            self.refused += 1;
            return NONE;
        }
        let number = self.texts.len() as u32;
        let text: Arc<str> = text.into();
        self.bytes += text.len();
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    /// The number of a text that may be missing.
    pub(crate) fn optional(&mut self, text: Option<&str>) -> u32 {
        text.map_or(NONE, |text| self.number(text))
    }

    /// The text of a number.
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<str>> {
        self.texts.get(number as usize)
    }
}
