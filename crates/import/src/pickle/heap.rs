//! The memory of a pickle's values.

use std::collections::HashMap;

use crate::text_table::{NONE, TextTable};

/// Most bytes of all `bytes` values together.
const MAX_BLOBS: usize = 64 << 20;
/// Most pairs of numbers that are stored once.
const MAX_PAIRS: usize = 1024;

/// A value. One larger than a number is stored in the [`PickleHeap`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number that does not fit into 64 bits, or text past the limit; the value itself is not kept.
    Lost,
    Float(f64),
    Text(u32),
    Bytes(u32),
    List(u32),
    Tuple(u32),
    /// A dict, whose container has keys and values in turn.
    Dict(u32),
    /// A dict that was taken out, with the number under which.
    Taken(u32),
}

impl Value {
    /// The number of a list, tuple or dict.
    fn container(self) -> Option<u32> {
        match self {
            Self::List(number) | Self::Tuple(number) | Self::Dict(number) => Some(number),
            _ => None,
        }
    }
}

/// A pickle that was read.
#[derive(Debug)]
pub(crate) struct Pickle {
    pub heap: PickleHeap,
    pub root: Value,
}

/// Texts, and lists, tuples and dicts by number. One may contain itself.
#[derive(Debug, Default)]
pub(crate) struct PickleHeap {
    pub texts: TextTable,
    blobs: Vec<Box<[u8]>>,
    blob_bytes: usize,
    containers: Vec<Vec<Value>>,
    /// For each container, whether more than one value may refer to it.
    shared: Vec<bool>,
    /// Containers that no value refers to any more.
    unused: Vec<u32>,
    /// The number of values in all containers.
    held: usize,
    pairs: HashMap<(i64, i64), u32>,
}

impl PickleHeap {
    /// The text with a number.
    pub(crate) fn text(&self, number: u32) -> Option<&str> {
        self.texts.get(number).map(|text| &**text)
    }

    /// The items of a list, tuple or dict.
    pub(crate) fn items(&self, container: u32) -> &[Value] {
        self.containers.get(container as usize).map_or(&[], Vec::as_slice)
    }

    /// Drops all items of a list except the one at `index`.
    pub(crate) fn keep_one(&mut self, container: u32, index: Option<usize>) {
        let Some(items) = self.containers.get_mut(container as usize) else { return };
        let mut items = std::mem::take(items);
        self.held -= items.len();
        let kept = index.filter(|index| *index < items.len()).map(|index| items.swap_remove(index));
        self.release(items);
        if let Some(kept) = kept {
            self.held += 1;
            self.containers[container as usize] = vec![kept];
        }
    }

    pub(super) fn blob(&self, number: u32) -> &[u8] {
        self.blobs.get(number as usize).map_or(&[], |blob| blob)
    }

    pub(super) fn held_values(&self) -> usize {
        self.held
    }

    /// Lists, tuples and dicts that are in use.
    pub(super) fn in_use(&self) -> usize {
        self.containers.len() - self.unused.len()
    }

    pub(super) fn add_text(&mut self, text: &str) -> Value {
        match self.texts.number(text) {
            NONE => Value::Lost,
            number => Value::Text(number),
        }
    }

    pub(super) fn add_blob(&mut self, bytes: &[u8]) -> Result<Value, String> {
        self.blob_bytes += bytes.len();
        if self.blob_bytes > MAX_BLOBS {
            return Err(format!("it has more than {MAX_BLOBS} bytes in bytes"));
        }
        self.blobs.push(bytes.into());
        Ok(Value::Bytes(self.blobs.len() as u32 - 1))
    }

    /// Adds a container.
    pub(super) fn add(&mut self, kind: fn(u32) -> Value, items: Vec<Value>) -> Value {
        self.held += items.len();
        let number = match self.unused.pop() {
            Some(number) => {
                self.containers[number as usize] = items;
                number
            }
            None => {
                self.containers.push(items);
                self.shared.push(false);
                self.containers.len() as u32 - 1
            }
        };
        kind(number)
    }

    /// Adds a tuple. A tuple of two numbers, which can't change, is shared with an equal one.
    pub(super) fn add_tuple(&mut self, items: Vec<Value>) -> Value {
        let [Value::Int(first), Value::Int(second)] = items[..] else { return self.add(Value::Tuple, items) };
        if let Some(number) = self.pairs.get(&(first, second)) {
            return Value::Tuple(*number);
        }
        let tuple = self.add(Value::Tuple, items);
        if let (Value::Tuple(number), true) = (tuple, self.pairs.len() < MAX_PAIRS) {
            self.share(tuple);
            self.pairs.insert((first, second), number);
        }
        tuple
    }

    pub(super) fn fill(&mut self, container: u32, items: impl ExactSizeIterator<Item = Value>) {
        self.held += items.len();
        if let Some(container) = self.containers.get_mut(container as usize) {
            container.extend(items);
        }
    }

    /// Marks a value as one that more than one other may refer to.
    pub(super) fn share(&mut self, value: Value) {
        if let Some(number) = value.container() {
            self.shared[number as usize] = true;
        }
    }

    /// Drops the items of a container, and the container too where no other value refers to it.
    pub(super) fn drop_dict(&mut self, container: u32) {
        let items = std::mem::take(&mut self.containers[container as usize]);
        self.held -= items.len();
        self.release(items);
        if !self.shared[container as usize] {
            self.unused.push(container);
        }
    }

    /// Frees the containers of values that are no longer used.
    fn release(&mut self, mut values: Vec<Value>) {
        while let Some(value) = values.pop() {
            if let Some(number) = value.container().filter(|number| !self.shared[*number as usize]) {
                let items = std::mem::take(&mut self.containers[number as usize]);
                self.held -= items.len();
                values.extend(items);
                self.unused.push(number);
            }
        }
    }
}
