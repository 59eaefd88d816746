//! Descriptions of a plane's events and of their stats, by number, up to a bound.

use std::collections::HashMap;

use super::event_stats::{EventStats, Stat, StatValue};
use super::events::is_operator;
use super::message::{Fields, Value as Raw};

/// Most descriptions of a plane, and most bytes of their text.
const MAX_DESCRIPTIONS: usize = 1 << 20;
const MAX_BYTES: usize = 64 << 20;
/// Most stats that a description has for all its events.
const MAX_STATS: usize = 16;

/// A value that is kept.
#[derive(Debug)]
enum NameEntry {
    Integer(i64),
    Float(f64),
    Text(Box<str>),
}

/// The description of all events with a number.
#[derive(Debug)]
pub(crate) struct EventDescription {
    pub name: Box<str>,
    stats: Box<[(Stat, NameEntry)]>,
}

impl EventDescription {
    /// Stats that hold for each event.
    pub(crate) fn stats(&self) -> EventStats<'_> {
        let mut stats = EventStats::default();
        for (stat, value) in &self.stats {
            let value = match value {
                NameEntry::Integer(value) => StatValue::Integer(*value),
                NameEntry::Float(value) => StatValue::Float(*value),
                NameEntry::Text(text) => StatValue::Text(text),
            };
            stats.add(*stat, value);
        }
        stats
    }
}

/// Names of a plane.
#[derive(Debug, Default)]
pub(crate) struct PlaneNames {
    stats: HashMap<i64, (Box<str>, Option<Stat>)>,
    events: HashMap<i64, EventDescription>,
    bytes: usize,
    /// Descriptions that were past the bound or not valid.
    pub refused: u64,
}

impl PlaneNames {
    /// Takes the description of a stat (`XStatMetadata`).
    pub(crate) fn take_stat(&mut self, number: i64, message: &[u8]) {
        let mut fields = Fields::of(message);
        let name = fields.find_map(|(field, value)| (field == 2).then(|| value.bytes()).flatten());
        let name = String::from_utf8_lossy(name.unwrap_or_default());
        if self.has_room(name.len()) {
            let stat = Stat::named(&name);
            self.stats.insert(number, (name.into(), stat));
        }
    }

    /// Takes the description of events (`XEventMetadata`). The descriptions of its stats must have been taken before.
    pub(crate) fn take_event(&mut self, number: i64, message: &[u8]) {
        let (mut name, mut shown) = (&[][..], &[][..]);
        let mut kept = Vec::new();
        let mut fields = Fields::of(message);
        for (field, value) in &mut fields {
            match (field, value) {
                (2, Raw::Bytes(text)) => name = text,
                (4, Raw::Bytes(text)) => shown = text,
                (5, Raw::Bytes(stat)) if kept.len() < MAX_STATS => kept.extend(self.stat(stat).map(|(stat, value)| {
                    let value = match value {
                        StatValue::Integer(value) => NameEntry::Integer(value),
                        StatValue::Float(value) => NameEntry::Float(value),
                        StatValue::Text(text) => NameEntry::Text(text.into()),
                    };
                    (stat, value)
                })),
                _ => {}
            }
        }
        // Names of operations of XLA are whole instructions, and what is shown is what they are called. Of an operator of
        // TensorFlow only the type is shown.
        let (name, shown) = (String::from_utf8_lossy(name), String::from_utf8_lossy(shown));
        let name = if shown.is_empty() || is_operator(&name) { name } else { shown };
        let texts = kept.iter().map(|(_, value)| if let NameEntry::Text(text) = value { text.len() } else { 0 });
        if self.has_room(name.len() + texts.sum::<usize>()) {
            self.events.insert(number, EventDescription { name: name.into(), stats: kept.into() });
        }
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        let has_room = self.bytes + bytes <= MAX_BYTES && self.stats.len() + self.events.len() < MAX_DESCRIPTIONS;
        self.bytes += if has_room { bytes } else { 0 };
        self.refused += u64::from(!has_room);
        has_room
    }

    pub(crate) fn event(&self, number: i64) -> Option<&EventDescription> {
        self.events.get(&number)
    }

    /// Whether a stat has this name.
    pub(crate) fn is_called(&self, stat: i64, name: &str) -> bool {
        self.stats.get(&stat).is_some_and(|(own, _)| **own == *name)
    }

    /// The stat in a message (`XStat`), if it is one that is read.
    pub(crate) fn stat<'a>(&'a self, message: &'a [u8]) -> Option<(Stat, StatValue<'a>)> {
        let (number, value) = value(message)?;
        let stat = self.stats.get(&number)?.1?;
        Some((stat, self.resolved(value)?))
    }

    /// The value of a raw one.
    pub(crate) fn resolved<'a>(&'a self, (field, value): (u32, Raw<'a>)) -> Option<StatValue<'a>> {
        Some(match (field, value) {
            (2, Raw::Number(bits)) => StatValue::Float(f64::from_bits(bits)),
            (3 | 4, Raw::Number(number)) => StatValue::Integer(number as i64),
            (5, Raw::Bytes(text)) => StatValue::Text(std::str::from_utf8(text).ok()?),
            // The text is the name of another description.
            (7, Raw::Number(number)) => StatValue::Text(&self.stats.get(&(number as i64))?.0),
            _ => return None,
        })
    }
}

/// The number of a stat, and the field with its value.
pub(crate) fn value(message: &[u8]) -> Option<(i64, (u32, Raw<'_>))> {
    let (mut number, mut content) = (0, None);
    let mut fields = Fields::of(message);
    for (field, value) in &mut fields {
        match field {
            1 => number = value.signed()?,
            2..=7 => content = Some((field, value)),
            _ => {}
        }
    }
    Some((number, content?)).filter(|_| !fields.broken)
}
