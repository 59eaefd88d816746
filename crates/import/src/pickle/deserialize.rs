//! Values of a pickle as serde's data, so that a type reads pickles and JSON alike.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::heap::{Pickle, PickleHeap, Value};

/// Most work of a visit, with shared values counted each time: 16 for a value, and 1 for a byte of text.
const MAX_WORK: u64 = 1 << 27;
/// Work of a value, beside its text.
const VALUE_WORK: u64 = 16;
/// Most containers within each other in a visit.
const MAX_DEPTH: u32 = 64;

/// Why values do not fit a type.
#[derive(Debug)]
pub(crate) struct TypeMismatch(String);

impl fmt::Display for TypeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TypeMismatch {}

impl de::Error for TypeMismatch {
    fn custom<T: fmt::Display>(what: T) -> Self {
        Self(what.to_string())
    }
}

impl Pickle {
    /// Converts the whole pickle to a type.
    ///
    /// # Errors
    /// The values have another form, or are more than can be visited.
    pub(crate) fn parse<'de, T: Deserialize<'de>>(&'de self) -> Result<T, TypeMismatch> {
        self.heap.parse(self.root, MAX_WORK)
    }
}

impl PickleHeap {
    /// Converts a value to a type, with at most `work`.
    ///
    /// # Errors
    /// The values have another form, or are more than can be visited.
    pub(crate) fn parse<'de, T: Deserialize<'de>>(&'de self, value: Value, work: u64) -> Result<T, TypeMismatch> {
        let work = Cell::new(work);
        T::deserialize(PickleNode { heap: self, value, depth: 0, work: &work })
    }
}

/// A value that is being converted to a type.
#[derive(Clone, Copy)]
struct PickleNode<'de, 'w> {
    heap: &'de PickleHeap,
    value: Value,
    depth: u32,
    work: &'w Cell<u64>,
}

impl<'de> PickleNode<'de, '_> {
    fn spend(&self, work: u64) -> Result<(), TypeMismatch> {
        let left = self.work.get().checked_sub(work);
        self.work
            .set(left.ok_or_else(|| TypeMismatch("it has too many values, counting shared ones each time".into()))?);
        Ok(())
    }

    /// Visits the items of a container.
    fn within(self, container: u32) -> Result<PickleItems<'de, Self>, TypeMismatch> {
        if self.depth >= MAX_DEPTH {
            return Err(TypeMismatch(format!("more than {MAX_DEPTH} containers are within each other")));
        }
        Ok(PickleItems { items: self.heap.items(container).iter(), node: Self { depth: self.depth + 1, ..self } })
    }
}

impl<'de> Deserializer<'de> for PickleNode<'de, '_> {
    type Error = TypeMismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        self.spend(VALUE_WORK)?;
        match self.value {
            // A value that is not kept is not known.
            Value::None | Value::Lost => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Int(value) => visitor.visit_i64(value),
            Value::Float(value) => visitor.visit_f64(value),
            Value::Text(number) => {
                let text = self.heap.text(number).unwrap_or_default();
                self.spend(text.len() as u64)?;
                visitor.visit_borrowed_str(text)
            }
            Value::Bytes(number) => {
                let bytes = self.heap.blob(number);
                self.spend(bytes.len() as u64)?;
                visitor.visit_borrowed_bytes(bytes)
            }
            // No number of a pickle is read as one of 32 bits.
            Value::Taken(number) => visitor.visit_u32(number),
            Value::List(container) | Value::Tuple(container) => visitor.visit_seq(self.within(container)?),
            Value::Dict(container) => visitor.visit_map(self.within(container)?),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        match self.value {
            Value::None | Value::Lost => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TypeMismatch> {
        visitor.visit_newtype_struct(self)
    }

    /// Skips a value that the type does not have.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        self.spend(VALUE_WORK)?;
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier
    }
}

/// The remaining items of a container.
struct PickleItems<'de, N> {
    items: std::slice::Iter<'de, Value>,
    /// The node of every item, except for its value.
    node: N,
}

impl<'de, 'w> PickleItems<'de, PickleNode<'de, 'w>> {
    fn next(&mut self) -> Option<PickleNode<'de, 'w>> {
        self.items.next().map(|value| PickleNode { value: *value, ..self.node })
    }
}

impl<'de> SeqAccess<'de> for PickleItems<'de, PickleNode<'de, '_>> {
    type Error = TypeMismatch;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, TypeMismatch> {
        self.next().map(|node| seed.deserialize(node)).transpose()
    }
}

impl<'de> MapAccess<'de> for PickleItems<'de, PickleNode<'de, '_>> {
    type Error = TypeMismatch;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, TypeMismatch> {
        self.next().map(|node| seed.deserialize(node)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, TypeMismatch> {
        let node = self.next().ok_or_else(|| TypeMismatch("a key of a dict has no value".into()))?;
        seed.deserialize(node)
    }
}
