//! Feeds the lives of collectives to the analysis.

use super::*;
use crate::NCCL_TRACE;

#[test]
fn collectives_complete_on_other_threads() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let mut put = |thread, kind, ts, payload, a, b| {
        analyser.feed(thread, RingRecord::new(kind, payload, ts, a, b), DeviceTimestamp::None, &mut sink)
    };
    put(0, RecordKind::OptimizerBegin, 10, 0, 0, 0);
    put(0, RecordKind::OptimizerEnd, 20, 0, 1, 1);
    // Synchronous, 4000 bytes in 2000 ticks, finished by another thread.
    put(0, RecordKind::Issue, 1_000, 5 << 24 | 1, 77, 4_000);
    put(0, RecordKind::Started, 1_010, 0, 77, 0xbeef);
    put(1, RecordKind::Finished, 3_000, 0, 0xbeef, 0);
    put(0, RecordKind::WaitBegin, 1_100, 0, 0, 0);
    put(0, RecordKind::WaitEnd, 3_200, 0, 0, 0);
    put(0, RecordKind::OptimizerBegin, 4_000, 0, 0, 0);
    put(0, RecordKind::OptimizerEnd, 5_000, 0, 1, 2);
    analyser.end_drain(6_000, true, &mut sink);
    let rows = rows(&mut sink);
    let row = &rows[NCCL_TRACE][0];
    assert_eq!((row["step"].int(), row["seq"].int(), row["bytes"].int()), (1, 5, 4_000));
    assert!(close(row["duration_ms"].float() / 1e3, 2_000.0 * TICK));
    assert!((row["algbw_gbps"].float() * 1e9 * TICK - 2.0).abs() < 1e-6);
    assert_eq!(row["status"].text(), "completed");
    // The wait lasts from the issue until the thread ran again, and is counted once.
    assert!(close(rows[STEPS][1]["comm_time"].float(), 2_200.0 * TICK));
}

#[test]
fn what_a_stream_waits_for_has_the_devices_time() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let at = |at| DeviceTimestamp::At { device: 0, at };
    let mut one = |began, now, key, operation, issued, has_event, waited| {
        let mut put = |kind, ts, payload, a, device| {
            analyser.feed(0, RingRecord::new(kind, payload, ts, a, 4_000), device, &mut sink);
        };
        put(RecordKind::Issue, began, operation, key, issued);
        put(RecordKind::Posted, began + 1, 1, key, DeviceTimestamp::None);
        put(RecordKind::WaitBegin, began + 2, 0, 0, DeviceTimestamp::None);
        put(RecordKind::WaitEnd, now, u64::from(has_event), 0, waited);
    };
    // 5 is synchronous and of NCCL, 4 asynchronous, 1 of gloo (see `Everyone`). The host goes on at once.
    one(1_000, 1_010, 1, 5, at(50_000), true, at(90_000));
    // Its first event could not be had; its second; the device has not come to its end; it is asynchronous; it is gloo's.
    one(2_000, 2_010, 2, 5, DeviceTimestamp::Unknown, true, at(91_000));
    one(3_000, 3_010, 3, 5, at(92_000), false, DeviceTimestamp::Unknown);
    one(4_000, 4_010, 4, 5, at(93_000), true, DeviceTimestamp::Unknown);
    one(5_000, 5_010, 5, 4, at(94_000), false, DeviceTimestamp::None);
    one(6_000, 6_010, 6, 1, at(95_000), true, at(99_000));
    analyser.end_drain(6_020 + 2 * SECOND, false, &mut sink);
    let pending = sink.groups.iter().map(|group| group.pending.len()).sum::<usize>();
    assert_eq!(pending, 1, "only what the device has not come to");
    let rows = rows(&mut sink);
    let found: Vec<(&str, Option<f64>)> = rows[NCCL_TRACE]
        .iter()
        .map(|row| (row["status"].text(), (row["duration_ms"] != Cell::Null).then(|| row["duration_ms"].float())))
        .collect();
    let device = crate::clock::seconds(40_000) * 1e3;
    assert_eq!(found.len(), 5);
    assert!(found[0].0 == "completed" && close(found[0].1.unwrap(), device), "{found:?}");
    assert_eq!(found[1..4], [("issued", None); 3]);
    assert!(found[4].0 == "completed" && close(found[4].1.unwrap(), 10.0 * TICK * 1e3), "the host's: {found:?}");
}

#[test]
fn a_completion_that_only_a_late_wait_shows_has_no_duration() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let mut put = |kind, ts, payload, a, b| {
        analyser.feed(0, RingRecord::new(kind, payload, ts, a, b), DeviceTimestamp::None, &mut sink)
    };
    for (issued, waited, done, key) in [(1_000, 1_010, 9_000, 1), (10_000, 18_000, 18_010, 2)] {
        put(RecordKind::Issue, issued, 2, key, 400);
        put(RecordKind::Started, issued + 1, 0, key, 0xbeef);
        put(RecordKind::WaitBegin, waited, 0, 0, 0);
        put(RecordKind::Finished, done, 0, 0xbeef, 0);
        put(RecordKind::WaitEnd, done + 1, 0, 0, 0);
    }
    // A synchronous collective whose end is only shown by the wait for it, and one without a wait.
    put(RecordKind::Issue, 20_000, 1, 3, 400);
    put(RecordKind::Posted, 20_001, 1, 3, 0);
    put(RecordKind::WaitBegin, 20_002, 0, 0, 0);
    put(RecordKind::WaitEnd, 21_000, 0, 0, 0);
    put(RecordKind::Issue, 22_000, 1, 4, 400);
    put(RecordKind::Posted, 22_001, 1, 4, 0);
    put(RecordKind::Issue, 23_000, 2, 5, 400);
    put(RecordKind::Posted, 23_001, 1, 5, 0);
    analyser.end_drain(30_000, true, &mut sink);
    let rows = rows(&mut sink);
    let found: Vec<(&str, bool)> =
        rows[NCCL_TRACE].iter().map(|row| (row["status"].text(), row["duration_ms"] == Cell::Null)).collect();
    let (known, unknown, issued) = (("completed", false), ("completed", true), ("issued", true));
    assert_eq!(found, [known, unknown, known, issued, issued]);
}

#[test]
fn numbers_go_on_where_a_record_has_no_more_bits_for_them() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let last = (1_u64 << 30) - 1;
    // 1 is synchronous and of gloo. The third one was issued before the second and recorded after it.
    for (number, seq) in [last - 1, 0, last, 1].into_iter().enumerate() {
        let (at, key) = (1_000 * (number as u64 + 1), number as u64);
        let mut put = |kind, ts, payload, a| {
            analyser.feed(0, RingRecord::new(kind, payload, ts, a, 4_000), DeviceTimestamp::None, &mut sink);
        };
        put(RecordKind::Issue, at, seq << 24 | 1, key);
        put(RecordKind::WaitBegin, at + 1, 0, 0);
        put(RecordKind::WaitEnd, at + 2, 0, 0);
    }
    analyser.end_drain(5_000, false, &mut sink);
    assert_eq!(sink.groups.iter().map(|group| group.issued).collect::<Vec<_>>(), [(1 << 30) + 1]);
    analyser.end_drain(6_000, true, &mut sink);
    let mut seqs: Vec<i64> = rows(&mut sink)[NCCL_TRACE].iter().map(|row| row["seq"].int()).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, [(1 << 30) - 2, (1 << 30) - 1, 1 << 30, (1 << 30) + 1]);
}

#[test]
fn collectives_are_counted_beside_messages_unless_an_operation_was_not_recorded() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    // 1 is an all_reduce, and 3 a send (see `Everyone`). None of them is completed.
    let mut reported = |operations: &[(u64, u64)], now| {
        for (seq, operation) in operations {
            let record = RingRecord::new(RecordKind::Issue, seq << 24 | operation, 1_000 * (1 + seq), *seq, 4_000);
            analyser.feed(0, record, DeviceTimestamp::None, &mut sink);
        }
        analyser.end_drain(now, false, &mut sink);
        let [group] = &sink.groups[..] else { panic!("{:?}", sink.groups) };
        let pending = group.pending.iter().map(|operation| (operation.seq, operation.collective)).collect();
        (group.has_messages, group.collectives, pending)
    };
    let all: Vec<(i64, Option<i64>)> = vec![(0, Some(0)), (1, None), (2, Some(1))];
    assert_eq!(reported(&[(0, 1), (1, 3), (2, 1)], 10 * SECOND), (true, Some(2), all.clone()));
    let with_gap = [&all[..], &[(4, None)]].concat();
    assert_eq!(reported(&[(4, 1)], 20 * SECOND), (true, None, with_gap));
}
