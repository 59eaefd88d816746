//! Arrow's view of the declared tables.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use probe_proto::table::{ColumnType, Source, Table};
use probe_proto::tables::{IDENTITY, TABLES};

static SCHEMAS: LazyLock<Vec<SchemaRef>> = LazyLock::new(|| TABLES.iter().map(|table| build(table)).collect());

/// The place of `table` in [`TABLES`]; None for a table that is not declared there.
pub(crate) fn place(table: &Table) -> Option<usize> {
    TABLES.iter().position(|known| std::ptr::eq(*known, table))
}

/// All columns of `table` as SQL sees them, identity first.
pub fn arrow_schema(table: &'static Table) -> SchemaRef {
    place(table).map_or_else(|| build(table), |place| Arc::clone(&SCHEMAS[place]))
}

/// How many of the columns come before the table's own.
pub(crate) fn identity_columns(table: &Table) -> usize {
    match table.source {
        Source::Agent => IDENTITY.len(),
        Source::Collector => 0,
    }
}

/// The type that a declared column has in SQL.
pub(crate) fn arrow_type(kind: ColumnType) -> DataType {
    match kind {
        ColumnType::Int32 => DataType::Int32,
        ColumnType::Int64 => DataType::Int64,
        ColumnType::Float64 => DataType::Float64,
        ColumnType::Bool => DataType::Boolean,
        ColumnType::Text => DataType::Utf8View,
        ColumnType::Timestamp => DataType::Timestamp(TimeUnit::Nanosecond, Some(utc())),
        ColumnType::Unspecified => DataType::Null,
    }
}

/// The time zone of every timestamp.
pub(crate) fn utc() -> Arc<str> {
    static UTC: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from("UTC"));
    Arc::clone(&UTC)
}

fn build(table: &'static Table) -> SchemaRef {
    let fields = table.all_columns().map(|column| Field::new(column.name, arrow_type(column.kind), column.nullable));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}
