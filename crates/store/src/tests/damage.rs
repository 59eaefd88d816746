//! Frames that no agent meant to send, and declarations of another version.

use probe_proto::table::ColumnType;
use probe_proto::tables::{TABLES, torch_trace};
use probe_proto::{MAX_ROWS, v1};
use proptest::prelude::*;
use prost::Message;

use super::{encode, identity, int, mapping, read, row, strings};
use crate::segment::Segment;
use crate::{BatchRows, ColumnMapping, StringReceiver, arrow_schema};

/// Does with a batch of any kind what a collector and a query do.
fn take(mapping: &ColumnMapping, batch: &v1::Batch, strings: &mut StringReceiver) -> bool {
    let Ok(rows) = BatchRows::decode(mapping, batch, strings) else { return false };
    let sent: usize = batch.columns.iter().map(|column| column.data.len() + column.validity.len()).sum();
    // A byte on the wire becomes eight in memory at most; a column without bytes there has none here.
    assert!(rows.batch.bytes <= 8 * sent + 512 * rows.batch.cells.len(), "{} of {sent}", rows.batch.bytes);
    assert!(rows.len() <= MAX_ROWS);
    if rows.is_empty() {
        return true;
    }
    let segment = Segment::new(Some(identity()), None, rows, 0);
    let schema = arrow_schema(segment.table);
    let indices: Vec<usize> = (0..schema.fields().len()).collect();
    for batch in &segment.batches {
        let length = batch.rows.min(100);
        for offset in [0, batch.rows - length] {
            segment.record_batch(batch, offset, length, &indices, &schema).unwrap();
        }
    }
    indices.iter().for_each(|index| drop(segment.range(*index)));
    true
}

fn any_column() -> impl Strategy<Value = v1::Column> {
    let byte = || prop_oneof![0..4_u8, any::<u8>()];
    let bytes = move |least| prop::collection::vec(byte(), least..3);
    let base = prop_oneof![3 => Just(0), 1 => int()];
    let width =
        prop_oneof![2 => Just(0_u32), 1 => Just(1), 1 => Just(2), 1 => Just(4), 2 => Just(8), 1 => any::<u32>()];
    (bytes(1), prop_oneof![2 => Just(Vec::new()), 1 => bytes(1)], base, width, prop::bool::weighted(0.1)).prop_map(
        |(data, validity, base, width, nulls)| v1::Column {
            data: data.into(),
            validity: validity.into(),
            base,
            width,
            nulls,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_frame_is_refused_or_harmless(
        rows in prop::collection::vec(row(), 0..40),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..12),
    ) {
        let (_, mut strings) = strings();
        let mut frame = encode(&rows).encode_to_vec();
        for (sample, byte, how) in damage {
            if frame.is_empty() {
                break;
            }
            let offset = sample.index(frame.len());
            match how {
                0 => frame[offset] = byte,
                1 => frame.truncate(offset),
                _ => frame.insert(offset, byte),
            }
        }
        if let Ok(batch) = v1::Batch::decode(&frame[..]) {
            take(&mapping(), &batch, &mut strings);
        }
    }

    #[test]
    fn any_column_is_refused_or_harmless(
        rows in prop::collection::vec(row(), 0..40),
        claimed in prop::option::weighted(0.1, any::<u32>()),
        columns in prop::collection::vec((any::<prop::sample::Index>(), any_column()), 1..2),
        lengths_fit in prop::bool::weighted(0.8),
    ) {
        let (_, mut strings) = strings();
        let mut batch = encode(&rows);
        batch.rows = claimed.unwrap_or(batch.rows);
        for (sample, mut column) in columns {
            if lengths_fit {
                // Otherwise nearly every column would be refused for its length, and later checks would not be reached.
                let length = rows.len() * column.width.min(8) as usize;
                column.data = column.data.iter().copied().cycle().take(length).collect::<Vec<u8>>().into();
                let bits = if column.validity.is_empty() { 0 } else { rows.len().div_ceil(8) };
                column.validity = column.validity.iter().copied().cycle().take(bits).collect::<Vec<u8>>().into();
            }
            let index = sample.index(batch.columns.len());
            batch.columns[index] = column;
        }
        take(&mapping(), &batch, &mut strings);
    }

    #[test]
    fn any_declaration_is_refused_or_fits(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, 0..9_i32), 0..3),
    ) {
        let (_, mut strings) = strings();
        let table = TABLES[which.index(TABLES.len())];
        let mut schema = table.wire_schema();
        for (sample, how, kind) in edits {
            let index = sample.index(schema.columns.len());
            match how {
                0 => drop(schema.columns.remove(index)),
                1 => schema.columns[index].r#type = kind,
                2 => schema.columns[index].name.push('_'),
                _ => schema.columns.insert(index, schema.columns[index].clone()),
            }
        }
        if let Ok(mapping) = ColumnMapping::new(&schema) {
            let column = |declared: &v1::ColumnSchema| match declared.r#type() {
                ColumnType::Float64 => v1::Column { width: 8, data: vec![0; 24].into(), ..v1::Column::default() },
                _ => v1::Column::default(),
            };
            let columns = schema.columns.iter().map(column).collect();
            let batch = v1::Batch { rows: 3, columns, ..v1::Batch::default() };
            assert_eq!(take(&mapping, &batch, &mut strings), mapping.table().is_some());
        }
    }
}

#[test]
fn a_claim_of_many_rows_costs_nothing() {
    let (_, mut strings) = strings();
    let columns = torch_trace::TABLE.columns.iter().map(|column| match column.kind {
        // Zero bytes a row, for a million rows.
        ColumnType::Float64 if column.nullable => v1::Column { nulls: true, ..v1::Column::default() },
        ColumnType::Float64 => v1::Column { width: 8, data: vec![0; 8 << 20].into(), ..v1::Column::default() },
        _ => v1::Column::default(),
    });
    let batch = v1::Batch { rows: 1 << 20, columns: columns.collect(), ..v1::Batch::default() };
    assert!(take(&mapping(), &batch, &mut strings));
    let too_many = v1::Batch { rows: (1 << 20) + 1, ..batch };
    assert!(!take(&mapping(), &too_many, &mut strings));
}

#[test]
fn another_version_of_a_table() {
    let (_, mut strings) = strings();
    let column = |name: &str, kind: ColumnType| v1::ColumnSchema { name: name.into(), r#type: kind.into() };
    // One column more than here, one less.
    let mut schema = torch_trace::TABLE.wire_schema();
    schema.columns.retain(|column| column.name != "duration");
    schema.columns.insert(0, column("flops", ColumnType::Int64));
    let mapping = ColumnMapping::new(&schema).unwrap();
    assert_eq!(mapping.unknown_columns(), ["flops"]);
    let columns = schema.columns.iter().map(|column| match column.name.as_str() {
        "flops" => v1::Column { data: vec![1, 2, 3].into(), width: 200, ..v1::Column::default() },
        "host_duration" => v1::Column { width: 8, data: vec![0; 16].into(), ..v1::Column::default() },
        name if torch_trace::TABLE.columns.iter().any(|c| c.name == name && c.nullable) => {
            v1::Column { nulls: true, ..v1::Column::default() }
        }
        _ => v1::Column::default(),
    });
    let batch = v1::Batch { rows: 2, columns: columns.collect(), ..v1::Batch::default() };
    let rows = BatchRows::decode(&mapping, &batch, &mut strings).unwrap();
    let segment = Segment::new(Some(identity()), None, rows, 0);
    assert!(
        read(&segment).iter().all(|batch| batch.column_by_name("duration").unwrap().null_count() == batch.num_rows())
    );
    // Another type; a missing column that can't be NULL; a column that is declared twice.
    for (edit, what) in [
        (
            Box::new(|s: &mut v1::TableSchema| s.columns[0].r#type = ColumnType::Text.into()) as Box<dyn Fn(&mut _)>,
            "declared as text",
        ),
        (Box::new(|s: &mut v1::TableSchema| drop(s.columns.remove(0))), "missing"),
        (Box::new(|s: &mut v1::TableSchema| s.columns.push(s.columns[0].clone())), "declared twice"),
    ] {
        let mut schema = torch_trace::TABLE.wire_schema();
        edit(&mut schema);
        let error = ColumnMapping::new(&schema).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    // A table that is not known here is for the caller to ignore.
    let unknown = ColumnMapping::new(&v1::TableSchema { name: "python.gpu".into(), columns: Vec::new() }).unwrap();
    assert!(unknown.table().is_none());
}
