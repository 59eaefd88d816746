//! A timeline to write: two processes, slices that nest and that overlap, flows, a counter and an instant.

use std::io::Result;

use proptest::prelude::*;

use crate::{
    ArgumentValue, Counter, Flow, FlowKind, InstantEvent, Slice, Timeline, TraceFormat, TraceProcess, Track,
    WrittenCounts,
};

/// A slice of one of the tracks: track, begin, duration, name.
pub(super) type Drawn = (usize, i64, i64, String);

/// Slices as they may come: in order of time, longer ones first.
pub(super) fn slices() -> impl Strategy<Value = Vec<Drawn>> {
    // Few different times, so that many begin and end together.
    let one = (0_usize..3, 0_i64..40, 0_i64..30, "\\PC{0,8}|[\"\\\\\n\u{7f}\u{2028}]{1,4}");
    let one = one.prop_map(|(track, ts, duration, name)| (track, ts * 100, duration * 100, name));
    prop::collection::vec(one, 0..60).prop_map(|mut slices| {
        slices.sort_by_key(|(_, ts, duration, _)| (*ts, -duration));
        slices
    })
}

/// Writes them on the tracks of two processes.
pub(super) fn write(format: Box<dyn TraceFormat + '_>, slices: &[Drawn]) -> Result<WrittenCounts> {
    let mut timeline = Timeline::new(format);
    let first = timeline.process(&TraceProcess { name: "rank 0 \"host\"".into(), pid: Some(4711) })?;
    let second = timeline.process(&TraceProcess { name: "rank 1".into(), pid: None })?;
    let mut track = |process, group: Option<&str>, name: &str| {
        timeline.track(Track {
            process,
            group: group.map(str::to_owned),
            device: group.map(|_| 0),
            name: name.into(),
            profiled: false,
            order: 1,
        })
    };
    let tracks =
        [track(first, None, "thread 7")?, track(first, Some("GPU 0"), "stream 7")?, track(second, None, "thread 8")?];
    let counter = timeline.counter(Counter { process: second, name: "memory".into(), unit: "bytes" })?;
    for (index, (track, ts, duration, name)) in slices.iter().enumerate() {
        let arguments = [
            ("name", ArgumentValue::Text(name)),
            ("shape", ArgumentValue::Json("[[2,3]]")),
            ("nan", ArgumentValue::Float(f64::NAN)),
        ];
        let flows = [Flow::Begin(FlowKind::Launch, index as u64)];
        let slice = Slice {
            track: tracks[*track],
            ts: *ts,
            duration: *duration,
            name,
            category: "cpu_op",
            arguments: &arguments,
            flows: &flows[..usize::from(index % 2 == 0)],
        };
        timeline.slice(&slice)?.unwrap();
    }
    timeline.count(counter, 5, 12.5)?;
    timeline.count(counter, 6, f64::NAN)?;
    timeline.instant(&InstantEvent { track: tracks[2], ts: 7, name: "slow", category: "event", arguments: &[] })?;
    timeline.finish()
}
