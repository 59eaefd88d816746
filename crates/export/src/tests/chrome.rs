//! JSON parses, has every slice, and those of a track nest.

use proptest::prelude::*;
use serde_json::Value;

use super::drawn::{Drawn, slices, write};
use super::nesting::{Interval, nest};
use crate::{ChromeWriter, Flow, FlowKind, Slice, Timeline, TraceProcess, Track, TrackPoint};

fn file(base: i64, slices: &[Drawn]) -> (String, Value) {
    let mut bytes = Vec::new();
    let about = [("distributedInfo", "{\"rank\": 3}".to_owned())];
    write(Box::new(ChromeWriter::new(&mut bytes, base, true, &about).unwrap()), slices).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let read = serde_json::from_str(&text).unwrap();
    (text, read)
}

fn events<'a>(read: &'a Value, phase: &str) -> Vec<&'a Value> {
    read["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
}

fn interval(event: &Value) -> Interval {
    let ns = |key: &str| (event[key].as_f64().unwrap() * 1000.0).round() as i64;
    let track = event["pid"].as_i64().unwrap() << 32 | event["tid"].as_i64().unwrap();
    Interval { track, begin: ns("ts"), end: ns("ts") + ns("dur"), name: event["name"].as_str().unwrap().to_owned() }
}

#[test]
fn the_head_says_what_others_look_for() {
    let (text, read) = file(1000, &[(0, 1001, 1_234_567, "a".into()), (0, 3000, 5, "b".into())]);
    assert_eq!(read["baseTimeNanoseconds"], 1000);
    assert!(text.contains("\"distributedInfo\": {\"rank\": 3}"), "{text}");
    assert!(text.find("distributedInfo") > text.find("traceEvents"));
    let slices = events(&read, "X");
    assert_eq!((slices[0]["ts"].as_f64(), slices[0]["dur"].as_f64()), (Some(0.001), Some(1234.567)));
    assert!(text.contains("\"ts\":2,\"dur\":0.005"), "{text}");
    assert_eq!(slices[0]["args"]["shape"][0][1], 3);
    assert!(slices[0]["args"]["nan"].is_null());
    assert_eq!((events(&read, "C").len(), events(&read, "i").len()), (1, 1));
    let names: Vec<_> = events(&read, "M").into_iter().filter(|event| event["name"] == "thread_name").collect();
    assert_eq!(names[1]["args"]["name"], "GPU 0 stream 7");
}

#[test]
fn streams_are_tracks_of_their_device_where_readers_of_one_process_expect_it() {
    let mut bytes = Vec::new();
    let about = [("distributedInfo", "{\"rank\": 3}".to_owned())];
    let chrome = ChromeWriter::as_profiler(&mut bytes, 0, true, &about).unwrap();
    write(Box::new(chrome), &[(1, 5, 10, "gemm".into()), (0, 6, 1, "launch".into()), (2, 7, 1, "other".into())])
        .unwrap();
    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(
        text.contains("\"distributedInfo\": {\"rank\": 3}") && text.find("distributedInfo") < text.find("traceEvents")
    );
    let read: Value = serde_json::from_slice(&bytes).unwrap();
    let pids: Vec<_> = events(&read, "X").iter().map(|event| event["pid"].as_i64().unwrap()).collect();
    assert_eq!(pids, [0, 4711, 1_000_001]);
    let names: Vec<_> = events(&read, "M").into_iter().filter(|event| event["name"] == "process_name").collect();
    let device = names.iter().find(|event| event["pid"] == 0).unwrap();
    assert_eq!(device["args"]["name"], "GPU 0");
}

#[test]
fn an_arrow_goes_forward_in_time_and_comes_after_its_slices() {
    let mut bytes = Vec::new();
    let mut timeline = Timeline::new(Box::new(ChromeWriter::new(&mut bytes, 0, false, &[]).unwrap()));
    let process = timeline.process(&TraceProcess { name: "rank 0".into(), pid: None }).unwrap();
    let mut tracks = ["one", "other"].map(|name| {
        timeline
            .track(Track { process, group: None, device: None, name: name.into(), profiled: false, order: 0 })
            .unwrap()
    });
    tracks.reverse();
    let slice = |track, ts| Slice { track, ts, duration: 10, name: "x", category: "c", arguments: &[], flows: &[] };
    let from = timeline.slice(&slice(tracks[0], 5000)).unwrap().unwrap();
    let flows = [Flow::From { kind: FlowKind::Collective, id: 1, pair: 2, from }];
    timeline.slice(&Slice { flows: &flows, ..slice(tracks[1], 4000) }).unwrap();
    assert_eq!(timeline.finish().unwrap().arrows, 1);
    let read: Value = serde_json::from_slice(&bytes).unwrap();
    assert!(read.get("baseTimeNanoseconds").is_none());
    let list = read["traceEvents"].as_array().unwrap();
    let index_of = |phase: &str| list.iter().position(|event| event["ph"] == phase).unwrap();
    let (begin, end) = (&list[index_of("s")], &list[index_of("f")]);
    assert_eq!((begin["ts"].as_i64(), end["ts"].as_i64()), (Some(4), Some(5)));
    assert_eq!((&begin["id"], &begin["cat"]), (&end["id"], &end["cat"]));
    assert_eq!(end["tid"], interval_of(from, list));
    assert!(list.iter().rposition(|event| event["ph"] == "X") < Some(index_of("s")));
}

fn interval_of(point: TrackPoint, list: &[Value]) -> Value {
    let ts = point.ts / 1000;
    list.iter().find(|event| event["ph"] == "X" && event["ts"] == ts).unwrap()["tid"].clone()
}

proptest! {
    #[test]
    fn whatever_is_drawn_can_be_read_and_nests(slices in slices()) {
        let (text, read) = file(0, &slices);
        let drawn = events(&read, "X");
        prop_assert_eq!(drawn.len(), slices.len());
        let mut names: Vec<_> = drawn.iter().map(|event| event["name"].as_str().unwrap().to_owned()).collect();
        let mut expected: Vec<_> = slices.iter().map(|(_, _, _, name)| name.clone()).collect();
        names.sort();
        expected.sort();
        prop_assert_eq!(names, expected);
        let intervals: Vec<_> = drawn.iter().map(|event| interval(event)).collect();
        prop_assert!(nest(&intervals), "{text}");
        // An event a line: readers look for what they need line by line.
        prop_assert_eq!(text.lines().count(), 5 + read["traceEvents"].as_array().unwrap().len());
    }
}
