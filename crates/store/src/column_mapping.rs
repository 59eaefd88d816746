//! The columns of an agent's batches, fitted to the table as this collector declares it.

use std::collections::HashSet;

use probe_proto::decode::Malformed;
use probe_proto::table::{Column, ColumnType, Table};
use probe_proto::{tables, v1};

/// The mapping from an agent's columns to a table's.
#[derive(Debug)]
pub struct ColumnMapping {
    table: Option<&'static Table>,
    /// Number of columns of a batch.
    declared: usize,
    /// For each column of the table, its index in a batch.
    sources: Vec<Option<usize>>,
    unknown: Vec<String>,
}

impl ColumnMapping {
    /// Checks what an agent declared in Hello. A declared column that the table lacks is ignored; one that the table
    /// has and the agent lacks is NULL.
    ///
    /// # Errors
    /// A column declared twice, one of another type than here, and the lack of one that can't be NULL.
    pub fn new(schema: &v1::TableSchema) -> Result<Self, Malformed> {
        Self::of(tables::find(&schema.name), schema)
    }

    /// Checks what an agent declared as [`ColumnMapping::new`] does, for `table`, which may be one that the program declared.
    ///
    /// # Errors
    /// Those of [`ColumnMapping::new`].
    pub fn of(table: Option<&'static Table>, schema: &v1::TableSchema) -> Result<Self, Malformed> {
        let wrong =
            |column: &str, what: String| Malformed::Column { column: format!("{}.{column}", schema.name), what };
        let mut names = HashSet::new();
        if let Some(twice) = schema.columns.iter().find(|column| !names.insert(column.name.as_str())) {
            return Err(wrong(&twice.name, "declared twice".into()));
        }
        let Some(table) = table else {
            return Ok(Self { table: None, declared: schema.columns.len(), sources: Vec::new(), unknown: Vec::new() });
        };
        let source = |column: &Column| -> Result<Option<usize>, Malformed> {
            let Some(index) = schema.columns.iter().position(|declared| declared.name == column.name) else {
                return if column.nullable {
                    Ok(None)
                } else {
                    Err(wrong(column.name, "missing, and it can't be NULL".into()))
                };
            };
            let declared = schema.columns[index].r#type();
            if declared == column.kind {
                Ok(Some(index))
            } else {
                Err(wrong(column.name, format!("declared as {}, and it is {} here", name(declared), name(column.kind))))
            }
        };
        let sources = table.columns.iter().map(source).collect::<Result<_, _>>()?;
        let known = |declared: &v1::ColumnSchema| table.columns.iter().any(|column| column.name == declared.name);
        let unknown = schema.columns.iter().filter(|declared| !known(declared)).map(|c| c.name.clone()).collect();
        Ok(Self { table: Some(table), declared: schema.columns.len(), sources, unknown })
    }

    /// The table; None where this collector does not know it.
    pub fn table(&self) -> Option<&'static Table> {
        self.table
    }

    /// Columns that the agent sends and this collector ignores.
    pub fn unknown_columns(&self) -> &[String] {
        &self.unknown
    }

    /// Number of columns of a batch.
    pub fn declared(&self) -> usize {
        self.declared
    }

    /// For each column of the table, its index in a batch.
    pub fn sources(&self) -> &[Option<usize>] {
        &self.sources
    }
}

/// A type in words, for errors.
fn name(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::Int32 => "a 32-bit integer",
        ColumnType::Int64 => "a 64-bit integer",
        ColumnType::Float64 => "a float",
        ColumnType::Bool => "a boolean",
        ColumnType::Text => "text",
        ColumnType::Timestamp => "a timestamp",
        ColumnType::Unspecified => "of no type",
    }
}
