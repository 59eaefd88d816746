//! Feeds records to the analysis that a ring could hold, sensible ones and others.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::clock::SECOND;
use super::symbol_lookup::{CollectiveOperation, ModuleAtAddress, ModuleInfo, SymbolLookup};
use super::{Analyser, DeviceTimestamp, STEPS, TORCH_TRACE, payload};
use crate::clock::ClockSample;
use crate::record::{LOST_DETAIL, RecordKind, RingRecord};
use crate::row_buffer::RowBuffer;

mod collectives;
mod decoded;
mod operator_counts;
mod pauses;
mod script;

use decoded::{Cell, Row, rows, sum};
use script::{Script, Tree, tree};

/// Names in which every address is a module with parameters called `m<address>`.
#[derive(Debug)]
struct Everyone;

impl SymbolLookup for Everyone {
    fn generation(&self) -> u64 {
        1
    }
    fn module(&self, address: u64, _at: u64) -> ModuleAtAddress {
        let info = ModuleInfo {
            name: format!("m{address}").into(),
            class: "Module".into(),
            device: Some("cpu".into()),
            compiled: false,
            has_parameters: true,
        };
        ModuleAtAddress { info: Some(Arc::new(info)), since: 0, until: u64::MAX }
    }
    fn class(&self, _address: u64) -> Option<Arc<str>> {
        None
    }
    fn walk_again(&self, _root: u64) {}
    fn optimizer(&self, id: u64) -> Option<String> {
        (id < 4).then(|| format!("Optimizer{id}"))
    }
    fn operation(&self, id: u64) -> Option<CollectiveOperation> {
        (id < 6).then(|| CollectiveOperation {
            name: if id == 3 { "send" } else { "all_reduce" }.into(),
            group_id: 0,
            group_name: "0".into(),
            group_size: 2,
            dtype: None,
            async_op: id.is_multiple_of(2),
            backend: if id < 4 { "gloo" } else { "nccl" }.into(),
        })
    }
    fn named(&self, _is_span: bool, id: u64) -> Option<String> {
        (id < 4).then(|| format!("name {id}"))
    }
    fn line(&self, _id: u64) -> Option<String> {
        None
    }
    fn operator(&self, id: u64) -> Option<String> {
        (id < 4).then(|| format!("aten::operator_{id}"))
    }
    fn saved(&self, id: u64) -> Option<String> {
        (id < 4).then(|| format!("saved {id}"))
    }
    fn forget_before(&self, _ticks: u64) {}
}

/// Seconds of a tick in these tests: the smallest time of the analysis.
const TICK: f64 = 1.0 / SECOND as f64;

/// An analyser with two threads.
fn analyser() -> Analyser<Everyone> {
    let mut analyser = Analyser::new(Everyone);
    analyser.compare_clocks(ClockSample { ticks: 0, monotonic_ns: 0, unix_ns: 0 });
    analyser.compare_clocks(ClockSample { ticks: SECOND, monotonic_ns: 1_000_000_000, unix_ns: 1_000_000_000 });
    analyser.name_thread(0, 100);
    analyser.name_thread(1, 101);
    analyser
}

fn feed(script: &Script, detail: bool) -> (HashMap<String, Vec<Row>>, RowBuffer) {
    feed_to(analyser(), script, detail, &[])
}

/// An analyser with two threads whose clocks are compared now and then: after records, with each of these lengths of a tick
/// (ns).
fn feed_to(
    mut analyser: Analyser<Everyone>,
    script: &Script,
    detail: bool,
    lengths: &[f64],
) -> (HashMap<String, Vec<Row>>, RowBuffer) {
    let mut sink = RowBuffer::default();
    analyser.feed(
        0,
        RingRecord::new(RecordKind::Detail, u64::from(detail) | 0b111110, 1, 0, 0),
        DeviceTimestamp::None,
        &mut sink,
    );
    for (number, record) in script.records.iter().enumerate() {
        if let Some(length) = lengths.get(number) {
            let ns = (2e9 * length) as u64;
            analyser.compare_clocks(ClockSample { ticks: 2_000_000_000, monotonic_ns: ns, unix_ns: ns as i64 });
        }
        // Without detail the callbacks record no nodes, and the slot no calls within a call (which this feeds all the same).
        if detail || !matches!(record.kind(), Some(RecordKind::NodeStart | RecordKind::NodeEnd)) {
            analyser.feed(0, *record, DeviceTimestamp::None, &mut sink);
        }
    }
    analyser.end_drain(script.now, true, &mut sink);
    (rows(&mut sink), sink)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < TICK / 10.0
}

/// Whether a time is a whole multiple of the smallest one.
fn is_whole(seconds: f64) -> bool {
    (seconds / TICK).fract() == 0.0
}

proptest! {
    #[test]
    fn own_times_add_up(
        trees in prop::collection::vec(tree(), 1..4), ticks in 1..30_u64, lengths in prop::collection::vec(0.3..3.0, 0..60),
    ) {
        let mut script = Script { now: 1, ..Script::default() };
        for _ in 0..2 {
            for tree in &trees {
                script.pass(5);
                script.call(tree);
            }
            script.backward(ticks);
            script.step();
        }
        let (rows, sink) = feed_to(analyser(), &script, true, &lengths);
        prop_assert!(sink.drops.is_empty());
        prop_assert_eq!(rows[STEPS].len(), 2);
        for step in &rows[STEPS] {
            let trace: Vec<Row> = rows[TORCH_TRACE].iter().filter(|row| row["step"] == step["step"]).cloned().collect();
            // Equal to the last bit, however the clock was corrected meanwhile.
            prop_assert_eq!(sum(&trace, "forward", "duration"), step["forward_time"].float());
            prop_assert_eq!(sum(&trace, "backward", "duration"), step["backward_time"].float());
            prop_assert_eq!(sum(&trace, "step", "duration"), step["optimizer_time"].float());
            let parts = ["data_time", "forward_time", "backward_time", "optimizer_time", "comm_time", "other_time"];
            prop_assert_eq!(parts.iter().map(|part| step[part].float()).sum::<f64>(), step["duration"].float());
            prop_assert!(parts.iter().all(|part| is_whole(step[part].float())), "{:?}", step);
            let times = ["duration", "total_duration", "host_duration"];
            prop_assert!(trace.iter().all(|row| times.iter().all(|time| is_whole(row[time].float()))), "{:?}", trace);
            prop_assert_eq!(step["micro_steps"].int(), trees.len() as i64);
            let outermost: f64 = trace.iter().filter(|row| row["stage"].text() == "forward" && row["depth"] == Cell::Int(0))
                .map(|row| row["total_duration"].float()).sum();
            prop_assert_eq!(outermost, step["forward_time"].float());
            // Backward work is spread: a module that made nodes has some, and no other module's own time grows.
            for row in trace.iter().filter(|row| row["stage"].text() == "backward") {
                prop_assert!(row["total_duration"].float() >= row["duration"].float());
                prop_assert_ne!(&row["module"], &Cell::Null);
            }
        }
    }

    #[test]
    fn nonsense_never_panics(
        records in prop::collection::vec((0..3_usize, 0..RecordKind::ALL.len(), any::<u64>(), 0..6_u64, any::<(u64, u64)>(), 0..1_000_u64), 0..400),
    ) {
        let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
        let mut now = 0_u64;
        for (thread, kind, payload, small, (a, b), delta) in records {
            // Times mostly go forward and words are mostly small, so that some records fit together.
            now = if delta == 0 { a } else { now.wrapping_add(delta) };
            let (a, b) = if delta % 3 == 0 { (a, b) } else { (small, small + 1) };
            let payload = if delta % 5 == 0 { payload } else { small };
            let record = RingRecord::new(RecordKind::ALL[kind], payload, now, a, b);
            let device = match small {
                0 | 1 => DeviceTimestamp::None,
                2 => DeviceTimestamp::Unknown,
                _ => DeviceTimestamp::At { device: small as u8 % 2, at: if delta % 3 == 0 { a as i64 } else { now as i64 } },
            };
            analyser.feed(thread, if delta == 7 { record.flagged(LOST_DETAIL) } else { record }, device, &mut sink);
        }
        analyser.end_drain(now, false, &mut sink);
        analyser.end_drain(u64::MAX, true, &mut sink);
        analyser.end_thread(0);
        rows(&mut sink);
    }
}

#[test]
fn steps_are_judged_without_what_they_validated() {
    let train = |script: &mut Script| {
        script.call(&leaf(1, 2));
        script.backward(20);
        script.step();
    };
    let mut script = Script { now: 1, ..Script::default() };
    (0..40).for_each(|_| train(&mut script));
    let alike = script.records.len();
    let mut analyser = analyser();
    let mut sink = RowBuffer::default();
    let detail = RingRecord::new(RecordKind::Detail, 1 | 0b111110, 1, 0, 0);
    analyser.feed(0, detail, DeviceTimestamp::None, &mut sink);
    let feed = |analyser: &mut Analyser<Everyone>, records: &[RingRecord], sink: &mut RowBuffer| {
        records.iter().for_each(|record| analyser.feed(0, *record, DeviceTimestamp::None, sink));
        (analyser.meter().counts(), analyser.meter().step_seconds())
    };
    let before = feed(&mut analyser, &script.records, &mut sink);
    assert!(before.0.0.is_some() && before.1.is_some());
    rows(&mut sink);
    for _ in 0..40 {
        for call in 0..5 {
            script.pass(if call > 0 { 1_000 } else { 0 });
            script.put(RecordKind::Enter, payload::EVAL_MODE | payload::NO_GRADIENTS | script.sequence, 1, 7);
            script.pass(10_000);
            script.put(RecordKind::Exit, script.sequence, 1, 0);
        }
        train(&mut script);
    }
    assert_eq!(feed(&mut analyser, &script.records[alike..], &mut sink), before);
    let steps = rows(&mut sink).remove(STEPS).unwrap_or_default();
    assert_eq!(steps.len(), 40);
    let parts = ["data", "forward", "backward", "optimizer", "comm", "validation", "other"];
    for step in steps {
        // Five calls, and the time between them.
        assert!(close(step["validation_time"].float(), 54_000.0 * TICK), "{step:?}");
        let sum: f64 = parts.iter().map(|part| step[format!("{part}_time").as_str()].float()).sum();
        assert_eq!(sum, step["duration"].float());
        assert_eq!((step["micro_steps"].int(), step["warmup"].int()), (1, 0));
    }
}

fn leaf(module: u64, nodes: u8) -> Tree {
    Tree { module, before: 100, between: 10, nodes, children: Vec::new() }
}

#[test]
fn nodes_go_to_the_call_that_made_them() {
    let root = Tree { children: vec![leaf(1, 2), leaf(2, 1)], ..leaf(9, 0) };
    let mut script = Script { now: 1, ..Script::default() };
    script.call(&root);
    script.backward(20);
    script.step();
    let (rows, _) = feed(&script, true);
    let own = |module: &str| {
        let of =
            rows[TORCH_TRACE].iter().filter(|row| row["stage"].text() == "backward" && row["module"].text() == module);
        of.map(|row| row["duration"].float()).sum::<f64>()
    };
    // Two nodes (a real one and its AccumulateGrad) for each made, 20 long, 2 to the next one.
    assert!(close(own("m1"), (4.0 * 22.0 - 2.0) * TICK), "{}", own("m1"));
    assert!(close(own("m2"), 44.0 * TICK));
    assert!(close(own("m9"), 0.0));
}

#[test]
fn detail_off_leaves_the_steps_alone() {
    let root = Tree { children: vec![leaf(1, 2)], ..leaf(9, 1) };
    let mut script = Script { now: 1, ..Script::default() };
    script.call(&root);
    script.backward(20);
    script.step();
    let (on, off) = (feed(&script, true).0, feed(&script, false).0);
    assert!(off[TORCH_TRACE].is_empty());
    for column in ["forward_time", "backward_time", "optimizer_time", "duration"] {
        assert_eq!(on[STEPS][0][column], off[STEPS][0][column], "{column}");
    }
    assert_eq!((&on[STEPS][0]["detail"], &off[STEPS][0]["detail"]), (&Cell::Int(1), &Cell::Int(0)));
}

#[test]
fn recomputation_is_taken_out_of_its_node() {
    let mut script = Script { now: 1, ..Script::default() };
    script.call(&leaf(1, 1));
    script.put(RecordKind::BackwardBegin, 0, 0, 0);
    let first = script.now;
    script.put(RecordKind::NodeStart, 0, 0, 0);
    script.pass(30);
    script.call(&leaf(1, 0));
    script.pass(20);
    script.put(RecordKind::NodeEnd, 0, 0, 0);
    let last = script.now;
    script.put(RecordKind::BackwardEnd, 0, first, last);
    script.step();
    let (rows, _) = feed(&script, true);
    let trace = &rows[TORCH_TRACE];
    assert!(close(sum(trace, "recompute", "duration"), 100.0 * TICK));
    assert!(close(sum(trace, "backward", "duration"), 50.0 * TICK));
    assert!(close(rows[STEPS][0]["backward_time"].float(), 150.0 * TICK));
    assert!(close(sum(trace, "forward", "duration"), rows[STEPS][0]["forward_time"].float()));
}

#[test]
fn a_pause_belongs_to_no_step() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let mut put =
        |kind, ts, a, b| analyser.feed(0, RingRecord::new(kind, 0, ts, a, b), DeviceTimestamp::None, &mut sink);
    put(RecordKind::OptimizerBegin, 1_000, 0, 0);
    put(RecordKind::OptimizerEnd, 2_000, 1, 1);
    // Half a step, then recording is off; it is on again in the middle of another step, whose rest counts.
    put(RecordKind::DataBegin, 2_100, 0, 0);
    put(RecordKind::DataEnd, 2_900, 0, 0);
    put(RecordKind::Resume, 1_000_000, 0, 0);
    put(RecordKind::OptimizerBegin, 1_000_300, 0, 0);
    put(RecordKind::OptimizerEnd, 1_000_500, 1, 2);
    // Off and on within an interval: the interval has its whole length, and the step counts the time after that.
    put(RecordKind::DataBegin, 1_000_600, 0, 0);
    put(RecordKind::Resume, 2_000_000, 0, 0);
    put(RecordKind::DataEnd, 2_000_100, 0, 0);
    put(RecordKind::OptimizerBegin, 2_000_200, 0, 0);
    put(RecordKind::OptimizerEnd, 2_000_500, 1, 3);
    let rows = rows(&mut sink);
    let steps = &rows[STEPS];
    let seen: Vec<_> =
        steps.iter().map(|row| (row["step"].int(), row["duration"].float(), row["data_time"].float())).collect();
    assert_eq!(seen.len(), 3);
    assert!(close(seen[1].1, 200.0 * TICK) && seen[1].2 == 0.0, "{seen:?}");
    assert!(close(seen[2].1, 500.0 * TICK) && close(seen[2].2, 100.0 * TICK), "{seen:?}");
    assert_eq!(seen[2].0, 2);
}

#[test]
fn a_step_that_recording_began_in_gets_no_row() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let mut put =
        |kind, ts, a, b| analyser.feed(0, RingRecord::new(kind, 0, ts, a, b), DeviceTimestamp::None, &mut sink);
    put(RecordKind::Resume, 1_000, 1, 0);
    put(RecordKind::Detail, 1_001, 0, 0);
    put(RecordKind::OptimizerBegin, 1_300, 0, 0);
    put(RecordKind::OptimizerEnd, 1_500, 1, 1);
    put(RecordKind::OptimizerBegin, 2_000, 0, 0);
    put(RecordKind::OptimizerEnd, 2_500, 1, 2);
    let rows = rows(&mut sink);
    let steps: Vec<i64> = rows[STEPS].iter().map(|row| row["step"].int()).collect();
    assert_eq!(steps, [1]);
    assert!(rows.get(TORCH_TRACE).is_none_or(|trace| trace.iter().all(|row| row["step"].int() == 1)));
    assert!(close(rows[STEPS][0]["duration"].float(), 1000.0 * TICK));
}

#[test]
fn what_was_lost_taints_what_was_open() {
    let mut script = Script { now: 1, ..Script::default() };
    script.put(RecordKind::Enter, 0, 9, 7);
    script.pass(10);
    script.call(&leaf(1, 1));
    script.pass(10);
    let last = RingRecord::new(RecordKind::Exit, 5, script.now, 9, 0).flagged(LOST_DETAIL);
    script.records.push(last);
    script.backward(20);
    script.step();
    let (rows, sink) = feed(&script, true);
    let forward: Vec<&str> =
        rows[TORCH_TRACE].iter().filter(|row| row["stage"].text() != "step").map(|row| row["module"].text()).collect();
    assert_eq!(forward, ["m1"], "the finished one is right, the others are not known");
    assert!(sink.drops[&(TORCH_TRACE, super::RING_FULL)] >= 2);
}

#[test]
fn shapes_without_number_leave_room_for_other_strings() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let feed = |analyser: &mut Analyser<Everyone>, sink: &mut RowBuffer, at: u64, kind, payload, a, b| {
        analyser.feed(0, RingRecord::new(kind, payload, at, a, b), DeviceTimestamp::None, sink);
    };
    feed(&mut analyser, &mut sink, 1, RecordKind::Detail, 0b111111, 0, 0);
    let call = |analyser: &mut Analyser<Everyone>, sink: &mut RowBuffer, number: u64, dimensions: u64| {
        let at = 10 + number * 10;
        feed(analyser, sink, at, RecordKind::Enter, 0, 1, 0);
        feed(analyser, sink, at + 1, RecordKind::Shape, dimensions << 8, number | 3 << 32, 5 | 7 << 32);
        if dimensions > 4 {
            feed(analyser, sink, at + 2, RecordKind::Shape, dimensions << 8 | 4, 9, 0);
        }
        feed(analyser, sink, at + 3, RecordKind::Exit, 0, 1, 0);
    };
    for number in 0..70_000 {
        call(&mut analyser, &mut sink, number, 4);
    }
    assert!(sink.strings.len() < 66_000, "{}", sink.strings.len());
    sink.release();
    rows(&mut sink);
    // A number that is known, and two that are not, of which one takes two records.
    call(&mut analyser, &mut sink, 80_000, 4);
    call(&mut analyser, &mut sink, 80_001, 5);
    analyser.feed(0, RingRecord::new(RecordKind::Enter, 0, 900_000, 1, 0), DeviceTimestamp::None, &mut sink);
    analyser.feed(
        0,
        RingRecord::new(RecordKind::Shape, 4 << 8, 900_001, 17 | 3 << 32, 5 | 7 << 32),
        DeviceTimestamp::None,
        &mut sink,
    );
    analyser.feed(0, RingRecord::new(RecordKind::Exit, 0, 900_002, 1, 0), DeviceTimestamp::None, &mut sink);
    sink.release();
    let rows = rows(&mut sink);
    let shapes: Vec<_> = rows[TORCH_TRACE].iter().map(|row| row["input_shape"].clone()).collect();
    assert_eq!(shapes, [Cell::Null, Cell::Null, Cell::Text("[17, 3, 5, 7]".to_owned())]);
}

#[test]
fn samples_under_vmap_are_known_where_a_model_is_given_one_at_a_time() {
    let shape = |vmapped: u64, first: u64| (2 << 8 | vmapped << 32, first | 16 << 32);
    let known = [((0, 4), Some(4)), ((32, 1), Some(32)), ((32, 4), None), ((payload::MANY_VMAPPED, 1), None)];
    for ((vmapped, first), samples) in known {
        let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
        let (said, word) = shape(vmapped, first);
        let records = [
            RingRecord::new(RecordKind::Detail, 0b111111, 1, 0, 0),
            RingRecord::new(RecordKind::Enter, 0, 10, 1, 0),
            RingRecord::new(RecordKind::Shape, said, 11, word, 0),
            RingRecord::new(RecordKind::Exit, 0, 12, 1, 0),
            RingRecord::new(RecordKind::MarkStep, 0, 20, 0, 0),
        ];
        records.into_iter().for_each(|record| analyser.feed(0, record, DeviceTimestamp::None, &mut sink));
        sink.release();
        let rows = rows(&mut sink);
        let (step, trace) = (&rows[STEPS][0], &rows[TORCH_TRACE][0]);
        assert_eq!(step["samples"], samples.map_or(Cell::Null, Cell::Int), "{vmapped} {first}");
        assert_eq!(trace["input_shape"], Cell::Text(format!("[{first}, 16]")));
    }
}

#[test]
fn a_step_in_which_the_machine_slept_gets_no_row_and_the_next_ones_are_right() {
    let mut analyser = Analyser::new(Everyone);
    let mut sink = RowBuffer::default();
    let sample = |seconds: f64, asleep: u64| ClockSample {
        ticks: ((seconds + asleep as f64) * SECOND as f64) as u64,
        monotonic_ns: (seconds * 1e9) as u64,
        unix_ns: (seconds * 1e9) as i64 + asleep as i64 * 1_000_000_000,
    };
    analyser.compare_clocks(sample(0.0, 0));
    analyser.name_thread(0, 100);
    // Steps of a quarter of a second; after the sixth ends at 1.5 s, the machine sleeps for an hour at 1.6 s.
    for number in 1..=40_u64 {
        let seconds = number as f64 / 10.0;
        let asleep = if number > 16 { 3600 } else { 0 };
        analyser.compare_clocks(sample(seconds, asleep));
        for end in 1..=16_u64 {
            let at = end as f64 / 4.0;
            if at > seconds - 0.1 && at <= seconds {
                let record = RingRecord::new(RecordKind::MarkStep, 0, sample(at, asleep).ticks, 0, end);
                analyser.feed(0, record, DeviceTimestamp::None, &mut sink);
            }
        }
    }
    let rows = rows(&mut sink);
    let found: Vec<i64> = rows[STEPS].iter().map(|row| row["step"].int()).collect();
    assert_eq!(found, (0..16).filter(|step| *step != 6).collect::<Vec<i64>>());
    for row in &rows[STEPS][1..] {
        let (step, duration, ts) = (row["step"].int(), row["duration"].float(), row["ts"].int());
        assert!((duration - 0.25).abs() < 1e-4, "step {step} took {duration}");
        let begin = step * 250_000_000 + if step > 6 { 3_600_000_000_000 } else { 0 };
        assert!((ts - begin).abs() < 1_000_000, "step {step} began {} ns late", ts - begin);
    }
    assert_eq!(sink.drops.get(&(STEPS, "a clock stood still")), Some(&1));
}
