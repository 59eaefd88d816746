//! Arrow's view of the declared tables.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use probe_proto::table::{ColumnType, IDENTITY, Table, TableSource};
use probe_proto::tables::{TABLES, custom};
use probe_proto::v1;

static SCHEMAS: LazyLock<Vec<SchemaRef>> = LazyLock::new(|| TABLES.iter().map(|table| build(table)).collect());

/// The index of `table` in [`TABLES`]; None for a table that is not declared there.
pub(crate) fn built_in_index(table: &Table) -> Option<usize> {
    TABLES.iter().position(|known| std::ptr::eq(*known, table))
}

/// All columns of `table` as SQL sees them, identity first.
pub fn arrow_schema(table: &'static Table) -> SchemaRef {
    built_in_index(table).map_or_else(|| build(table), |index| Arc::clone(&SCHEMAS[index]))
}

/// The table's own columns, without identity columns.
pub(crate) fn own_schema(table: &'static Table) -> SchemaRef {
    let all = arrow_schema(table);
    match identity_columns(table) {
        0 => all,
        identity => Arc::new(Schema::new(all.fields()[identity..].to_vec())),
    }
}

/// Number of identity columns, which come before the table's own.
pub fn identity_columns(table: &Table) -> usize {
    match table.source {
        TableSource::Agent => IDENTITY.len(),
        TableSource::Collector => 0,
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

/// Whether types are the same, for a table: all of Arrow's layouts of text are.
pub(super) fn same(found: &DataType, expected: &DataType) -> bool {
    let text = |kind: &DataType| matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    found == expected || text(found) && text(expected)
}

/// Declares the table of a program again, from its columns in a file. The declaration stays to the end of the process, so
/// the caller has to bound the number of calls.
///
/// # Errors
/// In words: no program can declare a table with these columns.
pub fn table_of(full_name: &str, schema: &Schema) -> Result<&'static Table, String> {
    let kinds = [ColumnType::Int64, ColumnType::Float64, ColumnType::Bool, ColumnType::Text, ColumnType::Timestamp];
    let kind = |field: &Field| {
        let kind = kinds.into_iter().find(|kind| same(field.data_type(), &arrow_type(*kind)));
        kind.unwrap_or(ColumnType::Unspecified) as i32
    };
    let own = schema.fields().iter().skip(IDENTITY.len());
    let columns = own.map(|field| v1::ColumnSchema { name: field.name().clone(), r#type: kind(field) });
    let schema = v1::TableSchema { name: full_name.to_owned(), columns: columns.collect() };
    custom::declare(full_name, &custom::columns_of(&schema)?)
}

fn build(table: &'static Table) -> SchemaRef {
    let fields = table.all_columns().map(|column| Field::new(column.name, arrow_type(column.kind), column.nullable));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}
