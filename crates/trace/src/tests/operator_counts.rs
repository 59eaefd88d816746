//! Feeds counts of operators to the analysis.

use super::*;
use crate::{OPERATOR_COUNTS, RecordedPart};

#[test]
fn counts_are_rows_of_the_step_that_ends_next() {
    let (mut analyser, mut sink) = (analyser(), RowBuffer::default());
    let mut put = |kind, ts, payload, a, b| {
        analyser.feed(0, RingRecord::new(kind, payload, ts, a, b), DeviceTimestamp::None, &mut sink);
    };
    put(RecordKind::OptimizerBegin, 1_000, 0, 0, 0);
    put(RecordKind::OptimizerEnd, 2_000, 0, 1, 1);
    // Two calls of operator 3 in forward, one of them by another operator; and of one that has no name.
    put(RecordKind::OperatorCount, 5_000, 3 | (RecordedPart::Forward as u64) << 16 | 64 << 24, 4_000, 2 | 1 << 32);
    put(RecordKind::OperatorCount, 5_100, 1024 | (RecordedPart::Optimizer as u64) << 16 | 64 << 24, 5_000, 7 | 7 << 32);
    // A part of a newer agent.
    put(RecordKind::OperatorCount, 5_200, 3 | 200 << 16, 5_000, 1);
    put(RecordKind::OptimizerBegin, 6_000, 0, 0, 0);
    put(RecordKind::OptimizerEnd, 7_000, 0, 1, 2);
    analyser.end_drain(8_000, true, &mut sink);
    let rows = rows(&mut sink);
    let [known, unknown] = &rows[OPERATOR_COUNTS][..] else { panic!("{:?}", rows[OPERATOR_COUNTS]) };
    assert_eq!((known["operator"].text(), known["part"].text()), ("aten::operator_3", "forward"));
    assert_eq!((known["step"].int(), known["stride"].int()), (1, 64));
    assert_eq!((known["count"].int(), known["outermost"].int()), (2, 1));
    assert!(close(known["duration"].float(), 1_000.0 * TICK), "{:?}", known["duration"]);
    assert_eq!((&unknown["operator"], unknown["part"].text(), unknown["count"].int()), (&Cell::Null, "optimizer", 7));
}
