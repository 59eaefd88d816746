//! Decodes rows as the collector does.

use std::collections::HashMap;

use probe_proto::decode::{self, DecodedValues};
use probe_proto::table::{ColumnType, Text};

use crate::row_buffer::RowBuffer;

pub(super) type Row = HashMap<&'static str, Cell>;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    Null,
    Int(i64),
    Float(f64),
    Text(String),
}

impl Cell {
    pub(super) fn float(&self) -> f64 {
        if let Self::Float(value) = self { *value } else { panic!("{self:?} is no float") }
    }
    pub(super) fn int(&self) -> i64 {
        if let Self::Int(value) = self { *value } else { panic!("{self:?} is no integer") }
    }
    pub(super) fn text(&self) -> &str {
        if let Self::Text(value) = self { value } else { panic!("{self:?} is no text") }
    }
}

/// Rows by table, decoded as by the collector.
pub(super) fn rows(sink: &mut RowBuffer) -> HashMap<String, Vec<Row>> {
    let tables: Vec<_> = sink.tables().collect();
    let mut all: HashMap<String, Vec<Row>> = tables.iter().map(|table| (table.full_name(), Vec::new())).collect();
    for batch in sink.take() {
        let table = tables[batch.table as usize];
        let count = decode::rows(&batch).expect("a size that is allowed");
        let mut made = vec![Row::new(); count];
        for (column, packed) in table.columns.iter().zip(&batch.columns) {
            let decoded = decode::column(column.name, column.kind, column.nullable, packed, count, sink.strings.len())
                .expect("a column that decodes");
            for (index, row) in made.iter_mut().enumerate() {
                let cell = match &decoded.values {
                    _ if !decoded.is_valid(index) => Cell::Null,
                    DecodedValues::Floats(bytes) => Cell::Float(f64::from_le_bytes(
                        bytes[index * 8..index * 8 + 8].try_into().expect("eight bytes"),
                    )),
                    DecodedValues::Constant(value) if column.kind == ColumnType::Text => text(sink, *value),
                    DecodedValues::Ints(values) if column.kind == ColumnType::Text => text(sink, values[index]),
                    DecodedValues::Constant(value) => Cell::Int(*value),
                    DecodedValues::Ints(values) => Cell::Int(values[index]),
                    DecodedValues::Nulls => Cell::Null,
                };
                row.insert(column.name, cell);
            }
        }
        all.insert(table.full_name(), made);
    }
    all
}

fn text(sink: &RowBuffer, id: i64) -> Cell {
    Cell::Text(sink.strings.get(Text(id as u32)).expect("a known string").to_owned())
}

pub(super) fn sum(rows: &[Row], stage: &str, column: &str) -> f64 {
    rows.iter().filter(|row| row["stage"].text() == stage).map(|row| row[column].float()).sum()
}
