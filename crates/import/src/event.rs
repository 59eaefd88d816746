//! One event of a Chrome trace, with the arguments that some table has.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::{RawValue, Value};

use super::number::{float, integer, nanoseconds, quantity};

/// An event, as its text has it. A key that comes twice has its last value.
#[derive(Debug, Default)]
pub(crate) struct ChromeEvent<'a> {
    pub ph: EventText<'a>,
    pub cat: EventText<'a>,
    pub name: EventText<'a>,
    pub pid: EventText<'a>,
    pub tid: EventText<'a>,
    /// Nanoseconds.
    pub ts: Option<i64>,
    pub dur: EventDuration,
    pub args: EventArguments<'a>,
}

/// How long an event lasted.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) enum EventDuration {
    /// The event has none: it is an instant.
    #[default]
    None,
    Nanoseconds(i64),
    /// What is there is no number, negative, or longer than decades.
    Impossible,
}

impl EventDuration {
    fn parse(text: &str) -> Self {
        match nanoseconds(text) {
            Some(nanoseconds) if nanoseconds >= 0 => Self::Nanoseconds(nanoseconds),
            None if matches!(text, "null" | "\"\"") => Self::None,
            _ => Self::Impossible,
        }
    }

    /// Nanoseconds, 0 for an instant; None where it is impossible.
    pub(crate) fn nanoseconds(self) -> Option<i64> {
        match self {
            Self::None => Some(0),
            Self::Nanoseconds(nanoseconds) => Some(nanoseconds),
            Self::Impossible => None,
        }
    }
}

/// Text, or a number as its text; empty if the event has neither.
pub(crate) type EventText<'a> = Cow<'a, str>;

/// Arguments of an event.
#[derive(Debug, Default)]
pub(crate) struct EventArguments<'a> {
    /// Name of a process or thread, in an event that names one.
    pub name: Option<EventText<'a>>,
    pub external_id: Option<i64>,
    pub correlation: Option<i64>,
    pub device: Option<i64>,
    pub stream: Option<i64>,
    pub sequence: Option<i64>,
    pub record_function: Option<i64>,
    pub input_shapes: Option<&'a str>,
    pub input_types: Option<&'a str>,
    /// Values of inputs that are no tensors, each as text.
    pub inputs: Option<&'a str>,
    pub flops: Option<f64>,
    pub call_stack: Option<EventText<'a>>,
    pub python_id: Option<i64>,
    pub python_parent: Option<i64>,
    pub grid: Option<&'a str>,
    pub block: Option<&'a str>,
    pub registers: Option<i64>,
    pub shared_memory: Option<i64>,
    pub blocks_per_sm: Option<f64>,
    pub warps_per_sm: Option<f64>,
    pub occupancy: Option<f64>,
    pub bytes: Option<i64>,
    pub bandwidth: Option<f64>,
    pub graph_id: Option<i64>,
    pub collective: Option<EventText<'a>>,
    pub group_name: Option<EventText<'a>>,
    pub group_ranks: Option<EventText<'a>>,
    pub group_size: Option<i64>,
    pub dtype: Option<EventText<'a>>,
    pub seq: Option<i64>,
    pub in_elements: Option<i64>,
    pub out_elements: Option<i64>,
    /// Bytes of an allocation; negative for a free.
    pub memory_bytes: Option<i64>,
    pub address: Option<i64>,
    pub device_type: Option<i64>,
    pub device_id: Option<i64>,
    pub total_allocated: Option<i64>,
    pub total_reserved: Option<i64>,
}

impl<'a> ChromeEvent<'a> {
    /// Parses JSON.
    pub(crate) fn parse(text: &'a str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// Begin and end.
    ///
    /// # Errors
    /// Why it has none.
    pub(crate) fn interval(&self) -> Result<(i64, i64), &'static str> {
        let ts = self.ts.ok_or("without a time")?;
        let duration = self.dur.nanoseconds().ok_or("with an impossible duration")?;
        Ok((ts, ts + duration))
    }
}

/// A raw value as text: a string's content, a number's digits; empty for null.
pub(crate) fn text(raw: &RawValue) -> Cow<'_, str> {
    let raw = raw.get();
    let Some(content) = raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Cow::Borrowed(if raw == "null" { "" } else { raw });
    };
    if content.contains('\\') {
        return serde_json::from_str(raw).map_or_else(|_| Cow::Borrowed(content), Cow::Owned);
    }
    Cow::Borrowed(content)
}

fn non_empty_text(raw: &RawValue) -> Option<Cow<'_, str>> {
    Some(text(raw)).filter(|text| !text.is_empty())
}

/// A raw value as JSON; None for null, an empty array and an empty string.
fn json(raw: &RawValue) -> Option<&str> {
    Some(raw.get()).filter(|text| !matches!(*text, "null" | "[]" | "\"\""))
}

impl<'de: 'a, 'a> Deserialize<'de> for ChromeEvent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = ChromeEvent<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an event: a JSON object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<ChromeEvent<'de>, M::Error> {
                let mut event = ChromeEvent::default();
                while let Some(key) = map.next_key::<JsonKey<'de>>()? {
                    match &*key.0 {
                        "ph" => event.ph = text(map.next_value()?),
                        "cat" => event.cat = text(map.next_value()?),
                        "name" => event.name = text(map.next_value()?),
                        "pid" => event.pid = text(map.next_value()?),
                        "tid" => event.tid = text(map.next_value()?),
                        "ts" => event.ts = nanoseconds(map.next_value::<&RawValue>()?.get()),
                        "dur" => event.dur = EventDuration::parse(map.next_value::<&RawValue>()?.get()),
                        "args" => {
                            let raw: &RawValue = map.next_value()?;
                            if raw.get().starts_with('{') {
                                event.args = serde_json::from_str(raw.get()).map_err(serde::de::Error::custom)?;
                            }
                        }
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(event)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// A key, without a copy where it has no escapes.
struct JsonKey<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for JsonKey<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Word;
        impl<'de> Visitor<'de> for Word {
            type Value = JsonKey<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<JsonKey<'de>, E> {
                Ok(JsonKey(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<JsonKey<'de>, E> {
                Ok(JsonKey(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Word)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for EventArguments<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = EventArguments<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("arguments: a JSON object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<EventArguments<'de>, M::Error> {
                let mut args = EventArguments::default();
                while let Some(key) = map.next_key::<JsonKey<'de>>()? {
                    args.take(&key.0, map.next_value()?);
                }
                Ok(args)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl<'a> EventArguments<'a> {
    /// The facts of a collective as JSON; None for another event.
    pub(crate) fn collective(&self) -> Option<String> {
        let text = |text: &Option<EventText<'_>>| text.as_deref().map(Value::from);
        let values = [
            ("Collective name", Some(Value::from(self.collective.as_deref()?))),
            ("Process Group Name", text(&self.group_name)),
            ("Process Group Ranks", text(&self.group_ranks)),
            ("Group size", self.group_size.map(Value::from)),
            ("Seq", self.seq.map(Value::from)),
            ("In msg nelems", self.in_elements.map(Value::from)),
            ("Out msg nelems", self.out_elements.map(Value::from)),
            ("dtype", text(&self.dtype)),
        ];
        let known: serde_json::Map<String, Value> =
            values.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        Some(Value::Object(known).to_string())
    }

    fn take(&mut self, key: &str, raw: &'a RawValue) {
        match key {
            "name" => self.name = non_empty_text(raw),
            "External id" | "external id" => self.external_id = integer(raw.get()),
            "correlation" => self.correlation = integer(raw.get()),
            "device" => self.device = quantity(raw.get()),
            "stream" => self.stream = integer(raw.get()),
            "Record function id" => self.record_function = integer(raw.get()).filter(|id| *id > 0),
            "Sequence number" => self.sequence = integer(raw.get()),
            "Input Dims" | "Input dims" => self.input_shapes = json(raw),
            "Input type" => self.input_types = json(raw),
            "Concrete Inputs" => self.inputs = json(raw),
            "flops" => self.flops = float(raw.get()),
            "Call stack" => self.call_stack = non_empty_text(raw),
            "Python id" => self.python_id = integer(raw.get()),
            "Python parent id" => self.python_parent = integer(raw.get()),
            "grid" => self.grid = json(raw),
            "block" => self.block = json(raw),
            "registers per thread" => self.registers = quantity(raw.get()),
            "shared memory" => self.shared_memory = quantity(raw.get()),
            "blocks per SM" => self.blocks_per_sm = float(raw.get()),
            "warps per SM" => self.warps_per_sm = float(raw.get()),
            "est. achieved occupancy %" => self.occupancy = float(raw.get()),
            "bytes" | "size" => self.bytes = quantity(raw.get()),
            "memory bandwidth (GB/s)" => self.bandwidth = float(raw.get()),
            "graph id" => self.graph_id = integer(raw.get()),
            "Collective name" => self.collective = non_empty_text(raw),
            "Process Group Name" => self.group_name = non_empty_text(raw),
            "Process Group Ranks" => self.group_ranks = non_empty_text(raw),
            "Group size" => self.group_size = quantity(raw.get()),
            "dtype" => self.dtype = non_empty_text(raw),
            "Seq" => self.seq = integer(raw.get()),
            "In msg nelems" => self.in_elements = quantity(raw.get()),
            "Bytes" => self.memory_bytes = quantity(raw.get()),
            "Addr" => self.address = integer(raw.get()),
            "Device Type" => self.device_type = quantity(raw.get()),
            "Device Id" => self.device_id = quantity(raw.get()),
            "Total Allocated" => self.total_allocated = quantity(raw.get()),
            "Total Reserved" => self.total_reserved = quantity(raw.get()),
            "Out msg nelems" => self.out_elements = quantity(raw.get()),
            _ => {}
        }
    }
}
