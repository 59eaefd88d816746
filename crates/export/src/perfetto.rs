//! Perfetto's protobuf: packets that begin and end slices, with texts written once.

mod interned;
pub(crate) mod messages;

use std::collections::BTreeMap;
use std::io::{Result, Write};

use prost::Message;

use self::interned::{InternedTexts, TextUse};
use self::messages::{
    Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, ProcessDescriptor, TracePacket, TrackDescriptor,
    TrackEvent,
};
use super::format::TraceFormat;
use super::model::{
    Argument, ArgumentValue, Counter, CounterId, Flow, InstantEvent, ProcessId, Slice, TraceProcess, Track, TrackId,
};

/// The number of the only sequence of packets: there is one writer.
const SEQUENCE: u32 = 1;
/// TracePacket.SequenceFlags.
const STATE_CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;
/// TrackEvent.Type.
const BEGIN: i32 = 1;
const END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;
/// BuiltinClock.
const REALTIME: u32 = 1;
const BOOTTIME: u32 = 6;
/// ChildTracksOrdering.EXPLICIT.
const EXPLICIT: i32 = 3;
/// CounterDescriptor.Unit.SIZE_BYTES.
const SIZE_BYTES: i32 = 3;

/// Ranges of uuids: each kind of track has numbers of its own.
const PROCESSES: u64 = 1 << 40;
const GROUPS: u64 = 2 << 40;
const TRACKS: u64 = 3 << 40;
const COUNTERS: u64 = 4 << 40;

/// The writer of a file.
pub struct PerfettoWriter<W> {
    out: W,
    texts: InternedTexts,
    groups: BTreeMap<(u32, String), u64>,
    /// Whether the next packet resets the numbers of texts.
    clears: bool,
    buffer: Vec<u8>,
}

impl<W: Write> PerfettoWriter<W> {
    /// Begins a file; where times are from 1970, `first` is one of them, so that viewers can show dates.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, first: Option<i64>) -> Result<Self> {
        let (texts, groups) = (InternedTexts::default(), BTreeMap::new());
        let mut new = Self { out, texts, groups, clears: true, buffer: Vec::new() };
        if let Some(timestamp) = first.and_then(|first| u64::try_from(first).ok()) {
            // Times of packets are of the clock since boot, which is declared equal to that of the day.
            let clock = |clock_id| Clock { clock_id, timestamp };
            let clock_snapshot = Some(ClockSnapshot { clocks: vec![clock(BOOTTIME), clock(REALTIME)] });
            new.packet(TracePacket { clock_snapshot, timestamp: Some(timestamp), ..TracePacket::default() })?;
        }
        Ok(new)
    }

    fn packet(&mut self, mut packet: TracePacket) -> Result<()> {
        packet.trusted_packet_sequence_id = SEQUENCE;
        // The packets of a file are the field 1 of one message.
        self.buffer.clear();
        self.buffer.push(0x0a);
        packet.encode_length_delimited(&mut self.buffer).map_err(std::io::Error::other)?;
        self.out.write_all(&self.buffer)
    }

    fn event(&mut self, ts: i64, track_event: TrackEvent) -> Result<()> {
        let flags = if std::mem::take(&mut self.clears) { STATE_CLEARED | NEEDS_STATE } else { NEEDS_STATE };
        let packet = TracePacket {
            timestamp: Some(u64::try_from(ts).unwrap_or_default()),
            track_event: Some(track_event),
            interned_data: self.texts.take_new(),
            sequence_flags: Some(flags),
            ..TracePacket::default()
        };
        self.packet(packet)?;
        self.clears = self.texts.forget_when_full();
        Ok(())
    }

    fn descriptor(&mut self, descriptor: TrackDescriptor) -> Result<()> {
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    fn group(&mut self, process: ProcessId, name: &str, order: i32) -> Result<u64> {
        if let Some(uuid) = self.groups.get(&(process.0, name.to_owned())) {
            return Ok(*uuid);
        }
        let uuid = GROUPS + self.groups.len() as u64;
        self.groups.insert((process.0, name.to_owned()), uuid);
        self.descriptor(TrackDescriptor {
            uuid,
            name: Some(name.to_owned()),
            parent_uuid: Some(PROCESSES + u64::from(process.0)),
            child_ordering: Some(EXPLICIT),
            sibling_order_rank: Some(order),
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    fn named(&mut self, kind: i32, track: TrackId, name: &str, category: &str, with: &[Argument<'_>]) -> TrackEvent {
        let annotation = |texts: &mut InternedTexts, (name, value): &Argument<'_>| {
            let mut made =
                DebugAnnotation { name_iid: texts.number(TextUse::ArgumentName, name), ..DebugAnnotation::default() };
            match value {
                ArgumentValue::Text(text) | ArgumentValue::Json(text) => {
                    made.string_value_iid = Some(texts.number(TextUse::Argument, text));
                }
                ArgumentValue::Int(number) => made.int_value = Some(*number),
                ArgumentValue::Float(number) => made.double_value = Some(*number),
                ArgumentValue::Bool(truth) => made.bool_value = Some(*truth),
            }
            made
        };
        TrackEvent {
            kind,
            track_uuid: TRACKS + u64::from(track.0),
            name_iid: Some(self.texts.number(TextUse::Name, name)),
            category_iids: vec![self.texts.number(TextUse::Category, category)],
            debug_annotations: with.iter().map(|argument| annotation(&mut self.texts, argument)).collect(),
            ..TrackEvent::default()
        }
    }
}

impl<W: Write> TraceFormat for PerfettoWriter<W> {
    fn process(&mut self, id: ProcessId, process: &TraceProcess) -> Result<()> {
        self.descriptor(TrackDescriptor {
            uuid: PROCESSES + u64::from(id.0),
            process: Some(ProcessDescriptor { pid: id.0 as i32 + 1, process_name: process.name.clone() }),
            child_ordering: Some(EXPLICIT),
            sibling_order_rank: Some(id.0 as i32),
            ..TrackDescriptor::default()
        })
    }

    fn track(&mut self, id: TrackId, track: &Track, lane: usize) -> Result<()> {
        let parent = match &track.group {
            Some(group) => self.group(track.process, group, track.order)?,
            None => PROCESSES + u64::from(track.process.0),
        };
        let more = if lane > 0 { format!(" ({})", lane + 1) } else { String::new() };
        self.descriptor(TrackDescriptor {
            uuid: TRACKS + u64::from(id.0),
            name: Some(format!("{}{more}", track.name)),
            parent_uuid: Some(parent),
            sibling_order_rank: Some(track.order),
            ..TrackDescriptor::default()
        })
    }

    fn counter(&mut self, id: CounterId, counter: &Counter) -> Result<()> {
        let is_size = counter.unit == "bytes";
        self.descriptor(TrackDescriptor {
            uuid: COUNTERS + u64::from(id.0),
            name: Some(counter.name.clone()),
            parent_uuid: Some(PROCESSES + u64::from(counter.process.0)),
            counter: Some(CounterDescriptor {
                unit: is_size.then_some(SIZE_BYTES),
                unit_name: (!is_size && !counter.unit.is_empty()).then(|| counter.unit.to_owned()),
            }),
            sibling_order_rank: Some(i32::MAX),
            ..TrackDescriptor::default()
        })
    }

    fn begin(&mut self, slice: &Slice<'_>, _: ProcessId) -> Result<()> {
        let mut event = self.named(BEGIN, slice.track, slice.name, slice.category, slice.arguments);
        event.flow_ids = slice.flows.iter().map(id).collect();
        self.event(slice.ts, event)
    }

    fn end(&mut self, track: TrackId, ts: i64) -> Result<()> {
        let track_uuid = TRACKS + u64::from(track.0);
        self.event(ts, TrackEvent { kind: END, track_uuid, ..TrackEvent::default() })
    }

    fn instant(&mut self, instant: &InstantEvent<'_>, _: ProcessId) -> Result<()> {
        let event = self.named(INSTANT, instant.track, instant.name, instant.category, instant.arguments);
        self.event(instant.ts, event)
    }

    fn count(&mut self, id: CounterId, _: &Counter, ts: i64, value: f64) -> Result<()> {
        let track_uuid = COUNTERS + u64::from(id.0);
        let double_counter_value = Some(value);
        self.event(ts, TrackEvent { kind: COUNTER, track_uuid, double_counter_value, ..TrackEvent::default() })
    }

    fn finish(&mut self) -> Result<()> {
        self.out.flush()
    }
}

/// The id of an arrow: slices with the same id are joined, in order of time.
fn id(flow: &Flow) -> u64 {
    match flow {
        Flow::Begin(_, id) | Flow::Through(_, id) | Flow::End(_, id) | Flow::Possible(id) | Flow::From { id, .. } => {
            *id
        }
    }
}
