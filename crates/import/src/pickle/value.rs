//! What a pickle holds.

/// A value. What is larger than a number lies elsewhere in the [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number that does not fit into 64 bits. Which one, is not kept.
    WideInt,
    Float(f64),
    /// Of the pickle's bytes, which are UTF-8 there.
    Text {
        start: u32,
        length: u32,
    },
    /// Of the pickle's bytes.
    Bytes {
        start: u32,
        length: u32,
    },
    List(u32),
    Tuple(u32),
    /// Its container has keys and values in turn.
    Dict(u32),
}

/// A pickle that was read.
#[derive(Debug)]
pub(crate) struct Pickle {
    pub(super) bytes: Vec<u8>,
    /// Lists, tuples and dicts, by number. One may contain itself.
    pub(super) containers: Vec<Vec<Value>>,
    pub(super) root: Value,
}

impl Pickle {
    /// The bytes of a text or of bytes.
    pub(super) fn slice(&self, start: u32, length: u32) -> &[u8] {
        let start = start as usize;
        self.bytes.get(start..start + length as usize).unwrap_or_default()
    }

    /// What is in a list, tuple or dict.
    pub(super) fn items(&self, container: u32) -> &[Value] {
        self.containers.get(container as usize).map_or(&[], Vec::as_slice)
    }
}
