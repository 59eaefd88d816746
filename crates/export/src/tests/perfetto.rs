//! Packets decode, name what they need, and begin and end what was drawn, in order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use prost::Message;

use super::drawn::{Drawn, slices, write};
use super::nesting::{Interval, nest};
use crate::PerfettoWriter;
use crate::perfetto::messages::TracePacket;

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

fn packets(slices: &[Drawn]) -> Vec<TracePacket> {
    let mut bytes = Vec::new();
    write(Box::new(PerfettoWriter::new(&mut bytes, Some(1_700_000_000_000_000_000)).unwrap()), slices).unwrap();
    Trace::decode(&bytes[..]).unwrap().packet
}

/// Reads packets as a viewer does: in order of time, an end ends the slice that began last.
fn read(packets: &[TracePacket]) -> Vec<Interval> {
    let mut names = BTreeMap::new();
    let mut events = Vec::new();
    for packet in packets {
        for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            assert!(names.insert(name.iid, name.text.clone()).is_none());
        }
        if let Some(event) = &packet.track_event {
            assert_eq!(packet.sequence_flags.unwrap() & 2, 2);
            let name = event.name_iid.map(|iid| names[&iid].clone());
            events.push((packet.timestamp.unwrap() as i64, event.clone(), name));
        }
    }
    events.sort_by_key(|(ts, ..)| *ts);
    let (mut open, mut found) = (BTreeMap::<u64, Vec<(i64, String)>>::new(), Vec::new());
    for (ts, event, name) in events {
        let stack = open.entry(event.track_uuid).or_default();
        match event.kind {
            1 => stack.push((ts, name.unwrap())),
            2 => {
                let (begin, name) = stack.pop().unwrap();
                found.push(Interval { track: event.track_uuid as i64, begin, end: ts, name });
            }
            _ => {}
        }
    }
    assert!(open.values().all(Vec::is_empty));
    found
}

#[test]
fn tracks_are_below_their_process_and_counters_have_units() {
    let packets = packets(&[(1, 5, 10, "gemm".into())]);
    assert_eq!(packets[0].clock_snapshot.as_ref().unwrap().clocks.len(), 2);
    let descriptors: Vec<_> = packets.iter().filter_map(|packet| packet.track_descriptor.as_ref()).collect();
    let named = |name: &str| *descriptors.iter().find(|descriptor| descriptor.name.as_deref() == Some(name)).unwrap();
    let process_of = |uuid: Option<u64>| {
        let process = descriptors.iter().find(|descriptor| Some(descriptor.uuid) == uuid).unwrap().process.as_ref();
        process.unwrap().process_name.clone()
    };
    assert_eq!(named("stream 7").parent_uuid, Some(named("GPU 0").uuid));
    assert_eq!(process_of(named("GPU 0").parent_uuid), "rank 0 \"host\"");
    assert_eq!(process_of(named("memory").parent_uuid), "rank 1");
    assert_eq!(named("memory").counter.as_ref().unwrap().unit, Some(3));
    let uuids: BTreeSet<u64> = descriptors.iter().map(|descriptor| descriptor.uuid).collect();
    assert_eq!(uuids.len(), descriptors.len());
    let values: Vec<_> =
        packets.iter().filter_map(|packet| packet.track_event.as_ref()?.double_counter_value).collect();
    assert_eq!(values, [12.5]);
    let begin = packets.iter().filter_map(|packet| packet.track_event.as_ref()).find(|event| event.kind == 1).unwrap();
    assert_eq!((begin.flow_ids.len(), begin.debug_annotations.len()), (1, 3));
}

proptest! {
    #[test]
    fn whatever_is_drawn_can_be_read_and_nests(slices in slices()) {
        let found = read(&packets(&slices));
        prop_assert!(nest(&found));
        let key = |begin: i64, end: i64, name: &str| (begin, end, name.to_owned());
        let mut ours: Vec<_> = found.iter().map(|slice| key(slice.begin, slice.end, &slice.name)).collect();
        let mut theirs: Vec<_> = slices.iter().map(|(_, ts, duration, name)| key(*ts, ts + duration, name)).collect();
        ours.sort();
        theirs.sort();
        prop_assert_eq!(ours, theirs);
    }
}
