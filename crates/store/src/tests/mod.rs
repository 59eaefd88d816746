//! A batch that arrives is either refused ([`damage`]) or stored exactly as it was sent.

#![allow(clippy::unwrap_used)]

mod damage;
mod files;
mod growing;
mod row_blocks;
mod system;

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{ColumnType, IDENTITY, Text, Time};
use probe_proto::tables::torch_trace::{self, Row};
use probe_proto::v1;
use proptest::prelude::*;

use super::rows::StoredBatch;
use super::segment::Segment;
use super::{BatchRows, ColumnMapping, ProcessIdentity, StringReceiver, arrow_schema};

/// Texts that are short enough to be stored in a view, and longer ones.
const TEXTS: &[&str] = &["", "cpu", "forward", "layers.0.attn.qkv", "a name that is far longer than twelve bytes, ä"];

fn strings() -> (StringTable, StringReceiver) {
    let mut table = StringTable::default();
    for text in TEXTS {
        table.id(text);
    }
    let mut strings = StringReceiver::default();
    strings.extend(table.since(0).unwrap()).unwrap();
    (table, strings)
}

fn identity() -> Arc<ProcessIdentity> {
    Arc::new(ProcessIdentity {
        run: "gpt@1".into(),
        host: "node-1".into(),
        pid: 100,
        rank: Some(3),
        local_rank: None,
        world_size: Some(8),
        role: "trainer".into(),
    })
}

fn mapping() -> ColumnMapping {
    ColumnMapping::new(&torch_trace::TABLE.wire_schema()).unwrap()
}

fn encode(rows: &[Row]) -> v1::Batch {
    let mut builder = BatchBuilder::new(&torch_trace::TABLE);
    rows.iter().for_each(|row| builder.push(*row));
    builder.take()
}

fn text() -> impl Strategy<Value = Text> {
    (0..TEXTS.len() as u32).prop_map(Text)
}

/// Values that pack into every width, and those at the ends of their type.
fn int() -> impl Strategy<Value = i64> {
    prop_oneof![0..200_i64, -40_000..40_000_i64, any::<i32>().prop_map(i64::from), any::<i64>()]
}

fn row() -> impl Strategy<Value = Row> {
    let texts = (prop::option::of(text()), prop::option::of(text()), text(), prop::option::of(text()));
    let ints = (int(), any::<i32>(), 0..3_i32, int(), Just(77_i64));
    let floats = (prop::option::of(any::<f64>()), any::<f64>(), prop::option::of(Just(0.5)));
    (texts, ints, floats, any::<bool>()).prop_map(|(texts, ints, floats, flag)| Row {
        step: ints.0,
        micro_step: ints.1,
        call_index: ints.2,
        module: texts.0,
        module_type: texts.1,
        depth: 1,
        stage: texts.2,
        ts: Time(ints.3),
        duration: floats.0,
        total_duration: floats.2,
        host_duration: floats.1,
        allocated: None,
        allocated_delta: None,
        max_allocated: floats.0,
        reserved: None,
        input_shape: texts.3,
        device: Some(Text(1)),
        compiled: flag,
        captured: Some(false),
        thread: ints.4,
    })
}

/// All columns and rows of a segment, each batch in two parts.
fn read(segment: &Segment) -> Vec<RecordBatch> {
    let schema = arrow_schema(segment.table);
    let indices: Vec<usize> = (0..schema.fields().len()).collect();
    let batch = |batch: &Arc<StoredBatch>| {
        let half = batch.rows / 2;
        let part = |offset, length| segment.record_batch(batch, offset, length, &indices, &schema).unwrap();
        [part(0, half), part(half, batch.rows - half)]
    };
    segment.batches.iter().flat_map(batch).collect()
}

fn check(batches: &[RecordBatch], rows: &[Row]) {
    let mut expected = rows.iter();
    for batch in batches {
        let column = |name: &str| batch.column_by_name(name).unwrap();
        let int = |name: &str, row| column(name).as_primitive::<Int64Type>().value(row);
        let int32 = |name: &str, row| column(name).as_primitive::<Int32Type>().value(row);
        let bits = |name: &str, row| {
            let values = column(name).as_primitive::<Float64Type>();
            values.is_valid(row).then(|| values.value(row).to_bits())
        };
        let text = |name: &str, row| {
            let values = column(name).as_string_view();
            values.is_valid(row).then(|| values.value(row).to_owned())
        };
        let text_of = |id: Option<Text>| id.map(|id| TEXTS[id.0 as usize].to_owned());
        for row in 0..batch.num_rows() {
            let expected = expected.next().unwrap();
            assert_eq!(int("step", row), expected.step);
            assert_eq!(int("thread", row), expected.thread);
            assert_eq!(int32("micro_step", row), expected.micro_step);
            assert_eq!(int32("call_index", row), expected.call_index);
            assert_eq!(int32("pid", row), 100);
            assert_eq!(int32("rank", row), 3);
            assert!(column("local_rank").is_null(row));
            assert_eq!(column("ts").as_primitive::<TimestampNanosecondType>().value(row), expected.ts.0);
            assert_eq!(bits("duration", row), expected.duration.map(f64::to_bits));
            assert_eq!(bits("total_duration", row), expected.total_duration.map(f64::to_bits));
            assert_eq!(bits("host_duration", row), Some(expected.host_duration.to_bits()));
            assert_eq!(bits("allocated", row), None);
            assert_eq!(text("run", row).as_deref(), Some("gpt@1"));
            assert_eq!(text("module", row), text_of(expected.module));
            assert_eq!(text("stage", row), text_of(Some(expected.stage)));
            assert_eq!(text("input_shape", row), text_of(expected.input_shape));
            assert_eq!(text("device", row), text_of(expected.device));
            assert_eq!(column("compiled").as_boolean().value(row), expected.compiled);
        }
    }
    assert!(expected.next().is_none());
}

/// Bounds must hold for every value: a wrong one makes rows disappear.
fn check_ranges(segment: &Segment, rows: &[Row]) {
    for (index, column) in torch_trace::TABLE.columns.iter().enumerate() {
        let (bounds, nulls) = segment.range(IDENTITY.len() + index);
        let value = |row: &Row| match column.name {
            "step" => Some(row.step as f64),
            "micro_step" => Some(f64::from(row.micro_step)),
            "duration" => row.duration,
            "host_duration" => Some(row.host_duration),
            "ts" => Some(row.ts.0 as f64),
            _ => None,
        };
        if column.name == "duration" {
            assert_eq!(nulls, rows.iter().filter(|row| row.duration.is_none()).count());
        }
        let Some((low, high)) = bounds else { continue };
        let float = |scalar: datafusion::common::ScalarValue| {
            let scalar = match column.kind {
                ColumnType::Timestamp => scalar.cast_to(&arrow::datatypes::DataType::Int64).unwrap(),
                _ => scalar,
            };
            match scalar.cast_to(&arrow::datatypes::DataType::Float64).unwrap() {
                datafusion::common::ScalarValue::Float64(Some(value)) => value,
                other => panic!("{other}"),
            }
        };
        let (low, high) = (float(low), float(high));
        for value in rows.iter().filter_map(value) {
            assert!(low <= value && value <= high, "{}: {value} not in {low}..={high}", column.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_was_sent_is_what_is_read(batches in prop::collection::vec(prop::collection::vec(row(), 1..40), 1..8)) {
        let (_, mut strings) = strings();
        let mut segment: Option<Segment> = None;
        for batch in &batches {
            let rows = BatchRows::decode(&mapping(), &encode(batch), &mut strings).unwrap();
            segment = Some(match segment {
                Some(segment) => segment.with_rows(rows, 0, 0),
                None => Segment::new(Some(identity()), None, rows, 0),
            });
        }
        let (segment, rows) = (segment.unwrap(), batches.concat());
        check(&read(&segment), &rows);
        check_ranges(&segment, &rows);
    }
}

/// Strings that come later don't disturb rows that came before, nor the other way round.
#[test]
fn strings_grow_with_the_connection() {
    let (mut table, mut strings) = strings();
    let mut sent = table.len();
    let mut segment: Option<Segment> = None;
    let names: Vec<String> = (0..300).map(|n| format!("{} {n}", "a long name, over and over".repeat(n % 40))).collect();
    let template = Row { stage: Text(2), ..blank() };
    for name in &names {
        let row = Row { module: Some(table.id(name)), ..template };
        strings.extend(table.since(sent).unwrap()).unwrap();
        sent = table.len();
        let rows = BatchRows::decode(&mapping(), &encode(&[row]), &mut strings).unwrap();
        segment = Some(match segment {
            Some(segment) => segment.with_rows(rows, 0, 0),
            None => Segment::new(Some(identity()), None, rows, 0),
        });
    }
    let batches = read(&segment.unwrap());
    let read = batches.iter().flat_map(|batch| {
        let column = batch.column_by_name("module").unwrap().as_string_view().clone();
        (0..column.len()).map(move |row| column.value(row).to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(read.collect::<Vec<_>>(), names);
    // Strings that repeat word for word are accepted. Others are refused, and change nothing.
    let again = v1::Strings { first: 0, values: vec![TEXTS[0].into(), TEXTS[1].into()] };
    assert!(strings.extend(again).is_ok());
    let other = v1::Strings { first: 0, values: vec!["other".into()] };
    assert!(strings.extend(other).is_err());
    assert!(strings.extend(v1::Strings { first: sent as u32 + 1, values: Vec::new() }).is_err());
    assert_eq!(strings.len(), sent);
}

fn blank() -> Row {
    Row {
        step: 0,
        micro_step: 0,
        call_index: 0,
        module: None,
        module_type: None,
        depth: 0,
        stage: Text(0),
        ts: Time(0),
        duration: None,
        total_duration: None,
        host_duration: 0.0,
        allocated: None,
        allocated_delta: None,
        max_allocated: None,
        reserved: None,
        input_shape: None,
        device: None,
        compiled: false,
        captured: Some(false),
        thread: 0,
    }
}

#[test]
fn text_of_a_connection_is_counted_once_however_many_segments_use_it() {
    use super::{BatchOrigin, Store};
    use probe_proto::tables::steps;

    let store = Store::new(8 << 20);
    let (_, mut texts) = strings();
    let long = vec!["x".repeat(1 << 10); 1500];
    texts.extend(v1::Strings { first: TEXTS.len() as u32, values: long }).unwrap();
    let steps_of = ColumnMapping::new(&steps::TABLE.wire_schema()).unwrap();
    for rank in 0..4 {
        let process = Arc::new(ProcessIdentity { rank: Some(rank), ..ProcessIdentity::clone(&identity()) });
        let trace = BatchRows::decode(&mapping(), &encode(&[blank()]), &mut texts).unwrap();
        let mut builder = BatchBuilder::new(&steps::TABLE);
        builder.push(steps::Row::of_a_second(1));
        let step = BatchRows::decode(&steps_of, &builder.take(), &mut texts).unwrap();
        for rows in [trace, step] {
            store.append(&process, BatchOrigin { instance: "agent".into(), first_seq: 1, last_seq: 1 }, rows);
        }
    }
    // Eight segments: if each counted the text, rows would be evicted.
    assert_eq!(store.snapshot().iter().flat_map(|table| table.segments()).count(), 8);
    assert!((1_500_000..2_000_000).contains(&store.memory()), "{}", store.memory());
    assert!(store.evicted().is_empty());
    // Text stays in memory for as long as rows or the connection need it.
    drop(texts);
    assert!(store.text_bytes() > 1_500_000);
    for table in &store.tables {
        while let Some(id) = table.snapshot().active.iter().next().map(|segment| segment.id) {
            table.remove(id, &store.counters);
        }
    }
    assert_eq!((store.memory(), store.text_bytes()), (0, 0));
}
