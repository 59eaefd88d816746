//! Feeds garbage collections, compilations and processor times to the analysis.

use probe_proto::config::Layers;

use super::*;
use crate::PAUSES;
use crate::payload::{COMPILATION, WITHOUT_ID};

#[test]
fn pauses_have_the_part_that_they_interrupt() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let layers = Layers::ALL.0;
    let mut put = |kind, ts, payload, a, b| {
        analyser.feed(0, RingRecord::new(kind, payload, ts, a, b), DeviceTimestamp::None, &mut sink);
    };
    let long = 2_000_000; // Ticks: more than 0.1 ms.
    // A collection before the first step does not begin a step.
    put(RecordKind::Pause, 1_000, 0, 900, 0);
    put(RecordKind::Detail, 2_000, u64::from(layers) << 1, 0, 0);
    put(RecordKind::OptimizerBegin, 3_000, 0, 0, 0);
    put(RecordKind::OptimizerEnd, 4_000, 0, 1, 1);
    // A collection too short for a row, a full one, and two compilations.
    put(RecordKind::Pause, 5_100, 1, 5_000, 7);
    put(RecordKind::Pause, 6_200, 2, 6_000, 8 | 1 << 32);
    put(RecordKind::OptimizerBegin, 7_000, 0, 0, 0);
    put(RecordKind::Pause, 8_000 + long, COMPILATION, 8_000, 3 | 1 << 32);
    put(RecordKind::Pause, 8_500 + long, COMPILATION | WITHOUT_ID, 8_400 + long, 0);
    put(RecordKind::OptimizerEnd, 9_000 + long, 0, 1, 2);
    analyser.end_drain(10_000 + long, true, &mut sink);
    let rows = rows(&mut sink);
    let said: Vec<_> = rows[PAUSES]
        .iter()
        .map(|row| (row["kind"].text(), row["part"].text(), row["step"].int(), row["generation"].clone()))
        .collect();
    assert_eq!(
        said,
        [
            ("garbage collection", "other", 1, Cell::Int(2)),
            ("compilation", "optimizer", 1, Cell::Null),
            ("compilation", "optimizer", 1, Cell::Null),
        ]
    );
    let row = &rows[PAUSES][0];
    assert_eq!((&row["collected"], &row["uncollectable"]), (&Cell::Int(8), &Cell::Int(1)));
    assert_eq!((rows[PAUSES][1]["compile_id"].text(), &rows[PAUSES][2]["compile_id"]), ("3/1", &Cell::Null));
    assert!(close(rows[STEPS][0]["duration"].float(), 2_000.0 * TICK), "{:?}", rows[STEPS][0]["duration"]);
    assert_eq!(rows[STEPS][0]["gc_time"], Cell::Float(0.0));
    assert!(close(rows[STEPS][1]["gc_time"].float(), 300.0 * TICK));
}

#[test]
fn processor_time_is_measured_between_two_ends_of_steps_of_one_thread() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let mut end = |thread, at, running: u64, waiting: u64, steps| {
        let mut put = |kind, ts, payload, a, b| {
            analyser.feed(thread, RingRecord::new(kind, payload, ts, a, b), DeviceTimestamp::None, &mut sink);
        };
        put(RecordKind::OptimizerBegin, at, 0, 0, 0);
        if running > 0 {
            put(RecordKind::ProcessorTimes, at + 5, 0, running, waiting);
        }
        put(RecordKind::OptimizerEnd, at + 10, 0, 1, steps);
    };
    end(0, 1_000, 500_000_000, 0, 1);
    end(0, 2_000, 750_000_000, 125_000_000, 2);
    end(0, 3_000, 1_000_000_000, u64::MAX, 3);
    end(1, 4_000, 9_000_000_000, 0, 4);
    end(1, 5_000, 0, 0, 5);
    end(1, 6_000, 9_500_000_000, 0, 6);
    end(1, 7_000, 9_750_000_000, 0, 7);
    analyser.end_drain(8_000, true, &mut sink);
    let rows = rows(&mut sink);
    let found: Vec<_> = rows[STEPS].iter().map(|row| (row["cpu_time"].clone(), row["run_delay"].clone())).collect();
    let nothing = (Cell::Null, Cell::Null);
    assert_eq!(found[0], nothing, "there was no end before");
    assert_eq!(found[1], (Cell::Float(0.25), Cell::Float(0.125)));
    assert_eq!(found[2], (Cell::Float(0.25), Cell::Null), "the kernel did not say");
    assert_eq!(
        found[3..6],
        [nothing.clone(), nothing.clone(), nothing.clone()],
        "another thread, no room, none before"
    );
    assert_eq!(found[6], (Cell::Float(0.25), Cell::Float(0.0)));
    assert!(rows[STEPS].iter().all(|row| row["gc_time"] == Cell::Null), "nobody said that pauses are recorded");
}
