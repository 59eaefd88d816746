//! Values as bytes: the state of the analysis is written to the shared mapping after each drain, and read again when the
//! process is gone.
//!
//! The bytes are fixed-width little-endian numbers, lengths before what they count, and fields in their order: writer and
//! reader are of the same version. Nothing that is read is trusted: it may be cut anywhere and have any bytes, and then the
//! result is None.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use probe_proto::encode::StringTable;
use probe_proto::table::{Text, Time};

/// A value that can be written as bytes and read again.
pub trait Persist: Sized {
    /// Appends the value to `to`.
    fn put(&self, to: &mut Vec<u8>);
    /// Reads a value from the beginning; None if the bytes are no such value.
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self>;
}

/// Bytes that are being read.
#[derive(Debug, Clone, Copy)]
pub struct PersistedBytes<'a>(&'a [u8]);

impl<'a> PersistedBytes<'a> {
    /// Begins to read `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads a length. Every element takes a byte or more, so a length is at most the number of bytes that are left.
    pub fn length(&mut self) -> Option<usize> {
        let length = usize::try_from(u64::get(self)?).ok()?;
        (length <= self.0.len()).then_some(length)
    }

    /// Whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Implements `Persist` for a struct, field by field.
macro_rules! persist {
    ($type:ty { $($field:ident),* $(,)? }) => {
        impl $crate::persist::Persist for $type {
            fn put(&self, to: &mut Vec<u8>) {
                $($crate::persist::Persist::put(&self.$field, to);)*
            }
            fn get(from: &mut $crate::persist::PersistedBytes<'_>) -> Option<Self> {
                Some(Self { $($field: $crate::persist::Persist::get(from)?),* })
            }
        }
    };
}
pub(crate) use persist;

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Persist for $type {
            #[inline]
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
                Some(Self::from_le_bytes(from.take(size_of::<Self>())?.try_into().ok()?))
            }
        }
    )*};
}
numbers!(u8, u32, u64, i32, i64, f64);

impl Persist for usize {
    fn put(&self, to: &mut Vec<u8>) {
        (*self as u64).put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        u64::get(from)?.try_into().ok()
    }
}

impl Persist for bool {
    fn put(&self, to: &mut Vec<u8>) {
        u8::from(*self).put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        Some(u8::get(from)? != 0)
    }
}

impl Persist for Text {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        u32::get(from).map(Self)
    }
}

impl Persist for Time {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        i64::get(from).map(Self)
    }
}

fn put_text(text: &str, to: &mut Vec<u8>) {
    text.len().put(to);
    to.extend_from_slice(text.as_bytes());
}

fn get_text<'a>(from: &mut PersistedBytes<'a>) -> Option<&'a str> {
    let length = from.length()?;
    std::str::from_utf8(from.take(length)?).ok()
}

impl Persist for String {
    fn put(&self, to: &mut Vec<u8>) {
        put_text(self, to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        get_text(from).map(Self::from)
    }
}

impl<T: Persist> Persist for Arc<T> {
    fn put(&self, to: &mut Vec<u8>) {
        (**self).put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        T::get(from).map(Self::new)
    }
}

impl Persist for Arc<str> {
    fn put(&self, to: &mut Vec<u8>) {
        put_text(self, to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        get_text(from).map(Self::from)
    }
}

impl Persist for Cow<'static, str> {
    fn put(&self, to: &mut Vec<u8>) {
        put_text(self, to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        get_text(from).map(|text| Self::Owned(text.to_owned()))
    }
}

impl<T: Persist> Persist for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        self.iter().for_each(|value| value.put(to));
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        Some(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

impl<T: Persist> Persist for Box<T> {
    fn put(&self, to: &mut Vec<u8>) {
        (**self).put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        T::get(from).map(Self::new)
    }
}

impl<T: Persist> Persist for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        self.iter().for_each(|value| value.put(to));
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        (0..from.length()?).map(|_| T::get(from)).collect()
    }
}

impl<T: Persist> Persist for VecDeque<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        self.iter().for_each(|value| value.put(to));
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        Vec::get(from).map(Self::from)
    }
}

impl<T: Persist, const N: usize> Persist for [T; N] {
    fn put(&self, to: &mut Vec<u8>) {
        self.iter().for_each(|value| value.put(to));
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        let values: Option<Vec<T>> = (0..N).map(|_| T::get(from)).collect();
        values?.try_into().ok()
    }
}

impl<A: Persist, B: Persist> Persist for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        Some((A::get(from)?, B::get(from)?))
    }
}

impl<K: Persist + Eq + Hash, V: Persist, S: BuildHasher + Default> Persist for HashMap<K, V, S> {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        for (key, value) in self {
            key.put(to);
            value.put(to);
        }
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        (0..from.length()?).map(|_| Some((K::get(from)?, V::get(from)?))).collect()
    }
}

impl Persist for StringTable {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        (0..self.len() as u32).filter_map(|id| self.get(Text(id))).for_each(|text| put_text(text, to));
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        let (count, mut strings) = (from.length()?, Self::default());
        for _ in 0..count {
            strings.id(get_text(from)?);
        }
        // A repeated text would shift the ids of all texts after it.
        (strings.len() == count).then_some(strings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Nested = (Vec<Option<(u64, String)>>, HashMap<u32, VecDeque<f64>>);

    fn nested() -> Nested {
        (
            vec![None, Some((7, "seven".into())), Some((u64::MAX, String::new()))],
            HashMap::from([(1, VecDeque::from([0.5, -1.0])), (2, VecDeque::new())]),
        )
    }

    #[test]
    fn what_was_put_down_is_taken_up() {
        let mut bytes = Vec::new();
        nested().put(&mut bytes);
        let mut kept = PersistedBytes::new(&bytes);
        assert_eq!(Nested::get(&mut kept), Some(nested()));
        assert!(kept.is_empty());
    }

    #[test]
    fn what_is_cut_or_too_long_is_nothing() {
        let mut bytes = Vec::new();
        nested().put(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(Nested::get(&mut PersistedBytes::new(&bytes[..length])), None);
        }
        let mut lies = Vec::new();
        u64::MAX.put(&mut lies);
        assert_eq!(Vec::<u8>::get(&mut PersistedBytes::new(&lies)), None);
        assert_eq!(String::get(&mut PersistedBytes::new(&lies)), None);
    }
}
