//! Values that versions and forms of dumps write in different ways.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Most ranks of a group.
const MAX_RANKS: usize = 1 << 20;

/// A whole number, also one that is written as text; None for anything else that stands for a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LenientNumber(pub Option<i64>);

/// A name, also one that is a number.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LenientName(pub String);

/// The ranks of a group, as text (`[0, 1]`) or as a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LenientRanks(pub Vec<i32>);

/// A list of which no more than `MAX` are kept: an element takes less room in a file than in memory.
#[derive(Debug)]
pub(crate) struct BoundedList<T, const MAX: usize> {
    pub items: Vec<T>,
    /// The number of elements that were not kept.
    pub more: u64,
}

/// A map from names of which no more than `MAX` values are kept.
#[derive(Debug)]
pub(crate) struct BoundedMap<T, const MAX: usize> {
    pub items: BTreeMap<LenientName, T>,
    pub more: u64,
}

impl<T, const MAX: usize> BoundedList<T, MAX> {
    /// The list; None where elements were not kept.
    pub(crate) fn whole(&self) -> Option<&[T]> {
        (self.more == 0).then_some(&self.items)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedList<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lists<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Lists<T, MAX> {
            type Value = BoundedList<T, MAX>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut found = BoundedList { items: Vec::new(), more: 0 };
                while found.items.len() < MAX {
                    match list.next_element()? {
                        Some(item) => found.items.push(item),
                        None => return Ok(found),
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    found.more += 1;
                }
                Ok(found)
            }
        }
        deserializer.deserialize_seq(Lists(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedMap<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Maps<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Maps<T, MAX> {
            type Value = BoundedMap<T, MAX>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("values by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = BoundedMap { items: BTreeMap::new(), more: 0 };
                while found.items.len() < MAX {
                    match map.next_entry()? {
                        Some((name, item)) => drop(found.items.insert(name, item)),
                        None => return Ok(found),
                    }
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    found.more += 1;
                }
                Ok(found)
            }
        }
        deserializer.deserialize_map(Maps(PhantomData))
    }
}

impl<'de> Deserialize<'de> for LenientNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;
        impl Visitor<'_> for Numbers {
            type Value = LenientNumber;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }
            fn visit_i64<E>(self, value: i64) -> Result<LenientNumber, E> {
                Ok(LenientNumber(Some(value)))
            }
            fn visit_u64<E>(self, value: u64) -> Result<LenientNumber, E> {
                Ok(LenientNumber(i64::try_from(value).ok()))
            }
            fn visit_str<E>(self, value: &str) -> Result<LenientNumber, E> {
                Ok(LenientNumber(value.trim().parse().ok()))
            }
            fn visit_f64<E>(self, _: f64) -> Result<LenientNumber, E> {
                Ok(LenientNumber(None))
            }
            fn visit_unit<E>(self) -> Result<LenientNumber, E> {
                Ok(LenientNumber(None))
            }
        }
        deserializer.deserialize_any(Numbers)
    }
}

impl<'de> Deserialize<'de> for LenientName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl Visitor<'_> for Names {
            type Value = LenientName;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_i64<E>(self, value: i64) -> Result<LenientName, E> {
                Ok(LenientName(value.to_string()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<LenientName, E> {
                Ok(LenientName(value.to_string()))
            }
            fn visit_str<E>(self, value: &str) -> Result<LenientName, E> {
                Ok(LenientName(value.to_owned()))
            }
            fn visit_unit<E>(self) -> Result<LenientName, E> {
                Ok(LenientName(String::new()))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

impl<'de> Deserialize<'de> for LenientRanks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lists;
        impl<'de> Visitor<'de> for Lists {
            type Value = LenientRanks;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of ranks")
            }
            fn visit_str<E>(self, text: &str) -> Result<LenientRanks, E> {
                let numbers = text.trim_matches(['[', ']', ' ']).split(',').map(str::trim);
                let ranks = numbers.take(MAX_RANKS).filter_map(|number| number.parse().ok()).collect();
                Ok(LenientRanks(ranks))
            }
            fn visit_unit<E>(self) -> Result<LenientRanks, E> {
                Ok(LenientRanks::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LenientRanks, A::Error> {
                let mut ranks = Vec::new();
                while let Some(LenientNumber(number)) = list.next_element()? {
                    if ranks.len() >= MAX_RANKS {
                        while list.next_element::<IgnoredAny>()?.is_some() {}
                        break;
                    }
                    ranks.extend(number.and_then(|number| i32::try_from(number).ok()));
                }
                Ok(LenientRanks(ranks))
            }
        }
        deserializer.deserialize_any(Lists)
    }
}
