//! Texts that are written once, and referred to by a number afterwards.

use std::collections::HashMap;

use super::messages::{InternedData, InternedString};

/// Bytes of texts past which all are forgotten, and numbers begin again.
const MAX_BYTES: usize = 16 << 20;

/// The use of a text: each use has numbers of its own.
#[derive(Debug, Clone, Copy)]
pub(super) enum TextUse {
    Category,
    Name,
    ArgumentName,
    Argument,
}

/// The texts of a file so far, and those that the next packet has to define.
#[derive(Debug, Default)]
pub(super) struct InternedTexts {
    known: [HashMap<String, u64>; 4],
    new: Option<InternedData>,
    bytes: usize,
}

impl InternedTexts {
    /// The number of a text.
    pub(super) fn number(&mut self, usage: TextUse, text: &str) -> u64 {
        let known = &mut self.known[usage as usize];
        if let Some(iid) = known.get(text) {
            return *iid;
        }
        let iid = known.len() as u64 + 1;
        known.insert(text.to_owned(), iid);
        self.bytes += 2 * text.len() + 64;
        let new = self.new.get_or_insert_default();
        let list = match usage {
            TextUse::Category => &mut new.event_categories,
            TextUse::Name => &mut new.event_names,
            TextUse::ArgumentName => &mut new.debug_annotation_names,
            TextUse::Argument => &mut new.debug_annotation_string_values,
        };
        list.push(InternedString { iid, text: text.to_owned() });
        iid
    }

    /// Takes the texts that the next packet has to define.
    pub(super) fn take_new(&mut self) -> Option<InternedData> {
        self.new.take()
    }

    /// Forgets all texts where they are too many, and returns whether they were.
    pub(super) fn forget_when_full(&mut self) -> bool {
        let is_full = self.bytes > MAX_BYTES;
        if is_full {
            *self = Self::default();
        }
        is_full
    }
}
