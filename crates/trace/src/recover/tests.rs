//! Mappings as a process leaves them, whole and overwritten.

use std::io::Write;
use std::os::unix::fs::FileExt;

use probe_proto::decode::{self, DecodedValues};
use probe_proto::tables::torch_trace;
use proptest::prelude::*;

use super::*;
use crate::clock::ClockSample;
use crate::record::RecordKind;
use crate::shared_layout::{
    CheckpointWriter, HEAD_AT, LOG_AT, LOG_BYTES, MARK_AT, PAGE, RING_BYTES, RING_MARK, THREAD_AT, log_mark, ring_at,
};
use crate::symbol_lookup::ModuleInfo;
use crate::symbol_table::{KnownModule, LearnedName};

const THREAD: u64 = 77;
/// Numbers of calls of module 1 that were analysed before the state was written, and that were not.
const BEFORE: u64 = 30;
const AFTER: u64 = 20;

/// A call of module 1 takes two records; the last one is open.
fn records() -> Vec<RingRecord> {
    let call = |number: u64| {
        let record = |kind, later| RingRecord::new(kind, number, 1000 * (number + 1) + later, 1, 0);
        [record(RecordKind::Enter, 0), record(RecordKind::Exit, 500)]
    };
    let mut records = vec![RingRecord::new(RecordKind::Detail, u64::MAX, 10, 0, 0)];
    records.extend((0..BEFORE + AFTER).flat_map(call));
    records.push(RingRecord::new(RecordKind::Enter, 99, 1_000_000, 2, 0));
    records
}

fn entry(name: &str) -> KnownModule {
    let info = ModuleInfo {
        name: name.into(),
        class: "Module".into(),
        device: Some("cpu".into()),
        compiled: false,
        has_parameters: true,
    };
    KnownModule { since: 0, until: u64::MAX, info: info.into() }
}

fn names() -> KnownNames {
    KnownNames { generation: 1, modules: [(1, vec![entry("one")])].into(), ..KnownNames::default() }
}

/// A mapping as an agent leaves it: a ring of whose records some have been analysed, and the state that was written then.
fn left(change: impl Fn(&mut Vec<u8>)) -> File {
    let file = tempfile::tempfile().expect("a file");
    let mut writer = CheckpointWriter::begin(file.try_clone().expect("a copy")).expect("a first page");
    let (all, taken) = (records(), 1 + 2 * BEFORE);
    let page = ring_at(0);
    file.write_all_at(&(all.len() as u64).to_le_bytes(), page + HEAD_AT as u64).expect("room");
    file.write_all_at(&THREAD.to_le_bytes(), page + THREAD_AT as u64).expect("room");
    file.write_all_at(&RING_MARK.to_le_bytes(), page + MARK_AT as u64).expect("room");
    let memory: Vec<u8> = all.iter().copied().flat_map(RingRecord::to_bytes).collect();
    file.write_all_at(&memory, page + PAGE).expect("room");
    file.set_len(page + RING_BYTES).expect("room");

    let mut analyser = Analyser::new(names());
    analyser.compare_clocks(ClockSample { ticks: 0, monotonic_ns: 0, unix_ns: 0 });
    analyser.compare_clocks(ClockSample { ticks: 1 << 27, monotonic_ns: 1_000_000_000, unix_ns: 1_000_000_000 });
    analyser.name_thread(0, THREAD as i64);
    let mut sink = RowBuffer::default();
    all[..taken as usize].iter().for_each(|record| analyser.feed(0, *record, DeviceTimestamp::None, &mut sink));
    writer.write_slot(CheckpointSlot::Names, |to| names().put(to)).expect("room");
    let outgoing = UplinkCheckpoint {
        rings: vec![RingPosition { ring: Some(0), taken, thread: THREAD as i64 }],
        tables: sink.tables().map(|table| EncodedMessage::of(&table.wire_schema())).collect(),
        last_seq: 6,
        batches: vec![EncodedMessage::of(&Batch { seq: 6, table: 3, ..Batch::default() })],
        status: EncodedMessage::of(&Status { step: 0, ..Status::default() }),
    };
    let fill = |to: &mut Vec<u8>| {
        write_state(&analyser, &sink, &outgoing, to);
        change(to);
    };
    writer.write_slot(CheckpointSlot::State, fill).expect("room");
    // The name of the last call's module was learned after that.
    let mut learned = Vec::new();
    LearnedName::Module(2, &entry("two")).put(&mut learned);
    let mut log = log_mark(&learned).to_le_bytes().to_vec();
    log.extend(&learned);
    file.write_all_at(&log, LOG_AT).expect("room");
    file.set_len(LOG_AT + LOG_BYTES).expect("room");
    file
}

/// Call numbers of `python.torch_trace`, from the batches.
fn calls(recovered: &RecoveredRows) -> Vec<i64> {
    let index = torch_trace::TABLE.columns.iter().position(|column| column.name == "call_index").expect("a column");
    let mut found = Vec::new();
    for batch in recovered.batches.iter().filter(|batch| batch.seq > 6 && batch.table == 0) {
        let (column, rows) = (&torch_trace::TABLE.columns[index], batch.rows as usize);
        let decoded = decode::column("call_index", column.kind, false, &batch.columns[index], rows, 0);
        match decoded.expect("a column that decodes").values {
            DecodedValues::Ints(values) => found.extend(values.iter().copied()),
            DecodedValues::Constant(value) => found.extend(std::iter::repeat_n(value, rows)),
            other => panic!("{other:?}"),
        }
    }
    found
}

#[test]
fn every_call_is_there_once_and_the_open_one_is_said() {
    let recovered = recover(&left(|_| {})).expect("something");
    // Each call of an outermost module with parameters is the first of a forward pass of its own.
    assert_eq!(calls(&recovered), vec![0; (BEFORE + AFTER) as usize]);
    assert_eq!((recovered.records, recovered.unread), (2 * AFTER + 1, 0));
    let seqs: Vec<u64> = recovered.batches.iter().map(|batch| batch.seq).collect();
    assert_eq!(seqs[..2], [6, 7]);
    let open = &recovered.open[0];
    assert_eq!((open.module.as_deref(), open.stage, open.thread), (Some("two"), "forward", THREAD as i64));
    let recorded = recovered.status.recorded["python.torch_trace"];
    // With the call whose end never came.
    assert_eq!(recorded, BEFORE + AFTER + 1);
    assert_eq!(recovered.status.drops.iter().map(|drop| drop.rows).sum::<u64>(), 1);
}

#[test]
fn what_cannot_be_read_is_counted_or_said() {
    let file = left(|_| {});
    file.write_all_at(&u64::MAX.to_le_bytes(), ring_at(0)).expect("room");
    assert_eq!(recover(&file).expect("the state").unread, CAPACITY as u64, "a head that can't be");
    let file = left(|_| {});
    file.write_all_at(&[0xff; 64], ring_at(0) + PAGE + 32 * (1 + 2 * BEFORE)).expect("room");
    let recovered = recover(&file).expect("the rest");
    assert_eq!((recovered.records, recovered.unread), (2 * AFTER + 1 - 2, 2));
    let file = left(|_| {});
    file.write_all_at(&[1; 8], 0).expect("room");
    assert!(recover(&file).expect_err("nothing").contains("overwritten"));
    let mut empty = tempfile::tempfile().expect("a file");
    empty.write_all(b"x").expect("room");
    assert!(recover(&empty).is_err());
    assert!(recover(&left(|state| state.truncate(state.len() / 2))).expect_err("half").contains("no sense"));
}

/// Offsets at which an agent's mapping has bytes.
fn anywhere() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..400_u64,
        ring_at(0)..ring_at(0) + 64,
        ring_at(0) + PAGE..ring_at(0) + PAGE + 4000,
        (192_u64 << 20)..(192 << 20) + 20_000,
        (256_u64 << 20)..(256 << 20) + 20_000,
        LOG_AT..LOG_AT + 200,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Bytes that a stray pointer wrote: they become no rows that were not there, and the recovery does not panic.
    #[test]
    fn an_overwritten_mapping_is_read_as_far_as_it_goes(
        writes in prop::collection::vec((anywhere(), prop::collection::vec(any::<u8>(), 1..40)), 1..6),
    ) {
        let file = left(|_| {});
        for (at, bytes) in &writes {
            file.write_all_at(bytes, *at).expect("room");
        }
        if let Ok(recovered) = recover(&file) {
            let rows: u64 = recovered.batches.iter().map(|batch| u64::from(batch.rows)).sum();
            prop_assert!(rows <= recovered.records + BEFORE + 64);
            prop_assert!(recovered.unread <= 64 * CAPACITY as u64);
        }
    }

    /// Overwritten state whose checksums fit, as a malicious process may write it.
    #[test]
    fn a_state_that_lies_harms_nobody(
        lies in prop::collection::vec((0..6000_usize, any::<u8>()), 1..8),
    ) {
        let file = left(|state| {
            for (at, byte) in &lies {
                let length = state.len();
                state[at % length] = *byte;
            }
        });
        // The recovered rows go through the same checks as rows from agents.
        let _ = recover(&file);
    }
}
