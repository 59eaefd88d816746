//! Tables that a program declares while it trains (`probe_agent.table`): valid names and columns,
//! and the conversion to a [`Table`] like the built-in ones.
//!
//! Both sides check with this module: the agent when the program declares a table, the collector when it receives that.

use super::TABLES;
use crate::table::{Column, ColumnType, IDENTITY, Table, TableSource};
use crate::v1;

/// Most tables that the programs of a run may declare. Each lasts to the end of the run, like its declaration.
pub const MAX_TABLES: usize = 32;
/// Most columns of a declared table, without `step` and `ts`.
pub const MAX_COLUMNS: usize = 64;
/// Longest name of a schema, a table, a column (bytes).
const MAX_NAME_LENGTH: usize = 63;
/// Longest text in a column (bytes).
pub const MAX_TEXT_LENGTH: usize = 4096;

/// Schemas that a program can't use: ours, those that are to become ours, and SQL's own.
const RESERVED: &[&str] = &["python", "probe", "process", "gpu", "information_schema", "pg_catalog", "unqualified"];

/// Columns of every row before those that the program declares.
static FIRST: [Column; 2] = [
    Column {
        name: "step",
        kind: ColumnType::Int64,
        nullable: false,
        unit: "",
        doc: "The step that it belongs to: the current one, or the one just finished when it was logged between an optimizer's step and the next batch or forward.",
    },
    Column { name: "ts", kind: ColumnType::Timestamp, nullable: false, unit: "", doc: "When it was appended." },
];

const DOC: &str = "Rows that the program records, by probe_agent.table.";
const COLUMN_DOC: &str = "Declared by the program.";

/// Whether a program can't declare a table of this full name: it is a built-in table, or its schema is reserved.
pub fn is_reserved(full_name: &str) -> bool {
    full_name.split_once('.').is_none_or(|(schema, _)| RESERVED.contains(&schema))
        || TABLES.iter().any(|table| table.full_name() == full_name)
}

/// Makes a table with these columns beside `step` and `ts`. Its memory is kept to the end of the process, as that of the
/// built-in tables is: the caller limits the number.
///
/// # Errors
/// A message about a name or a column that is not valid.
pub fn declare(full_name: &str, columns: &[(String, ColumnType)]) -> Result<&'static Table, String> {
    let (schema, name) = check_name(full_name)?;
    check_columns(full_name, columns)?;
    let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let own = columns.iter().map(|(name, kind)| Column {
        name: leak(name),
        kind: *kind,
        nullable: true,
        unit: "",
        doc: COLUMN_DOC,
    });
    let first = FIRST.iter().map(|column| Column { ..*column });
    let columns: Vec<Column> = first.chain(own).collect();
    let example = leak(&format!("SELECT * FROM {full_name} ORDER BY step DESC LIMIT 10"));
    Ok(Box::leak(Box::new(Table {
        schema: leak(schema),
        name: leak(name),
        doc: DOC,
        source: TableSource::Agent,
        columns: columns.leak(),
        sort: &["step", "ts"],
        examples: vec![example].leak(),
    })))
}

/// The columns that a schema on the wire declares beside `step` and `ts`.
///
/// # Errors
/// A message if those two do not come first.
pub fn columns_of(schema: &v1::TableSchema) -> Result<Vec<(String, ColumnType)>, String> {
    let begins_with = |index: usize| {
        schema.columns.get(index).is_some_and(|c| c.name == FIRST[index].name && c.r#type() == FIRST[index].kind)
    };
    if !begins_with(0) || !begins_with(1) {
        return Err(format!("a table of a program begins with step and ts, and {} does not", schema.name));
    }
    Ok(schema.columns[2..].iter().map(|column| (column.name.clone(), column.r#type())).collect())
}

/// Describes how `columns` differ from those of `table`; None where they are the same, in any order.
pub fn difference(table: &Table, columns: &[(String, ColumnType)]) -> Option<String> {
    let known = &table.columns[FIRST.len()..];
    for (name, kind) in columns {
        match known.iter().find(|column| column.name == name) {
            None => return Some(format!("it has no column {name}")),
            Some(column) if column.kind != *kind => {
                return Some(format!("its column {name} is {}, not {}", words(column.kind), words(*kind)));
            }
            Some(_) => {}
        }
    }
    let missing = known.iter().find(|column| !columns.iter().any(|(name, _)| name == column.name));
    missing.map(|column| format!("it has a column {} too", column.name))
}

/// The program's name for a type.
pub fn words(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::Int32 | ColumnType::Int64 => "int",
        ColumnType::Float64 => "float",
        ColumnType::Bool => "bool",
        ColumnType::Text => "str",
        ColumnType::Timestamp => "datetime",
        ColumnType::Unspecified => "of no type",
    }
}

fn check_name(full_name: &str) -> Result<(&str, &str), String> {
    let parts = full_name.split_once('.').filter(|(schema, name)| is_name(schema) && is_name(name));
    let Some((schema, name)) = parts else {
        return Err(format!(
            "a table can't be called '{}'; hint: SCHEMA.NAME of lower-case letters, digits and _, as in my.metrics",
            shortened(full_name)
        ));
    };
    if is_reserved(full_name) {
        return Err(format!("'{full_name}' can't be a program's table: {schema} is reserved; hint: my.{name}"));
    }
    Ok((schema, name))
}

fn check_columns(full_name: &str, columns: &[(String, ColumnType)]) -> Result<(), String> {
    if columns.is_empty() {
        return Err(format!("{full_name} has no columns; hint: table(\"{full_name}\", loss=float)"));
    }
    if columns.len() > MAX_COLUMNS {
        return Err(format!("{full_name} has {} columns; {MAX_COLUMNS} are the most", columns.len()));
    }
    for (index, (name, kind)) in columns.iter().enumerate() {
        if !is_name(name) {
            return Err(format!(
                "a column of {full_name} can't be called '{}'; hint: lower-case letters, digits and _",
                shortened(name)
            ));
        }
        if FIRST.iter().chain(IDENTITY).any(|column| column.name == name) {
            return Err(format!("every table has a column {name} already; {full_name} can't have its own"));
        }
        if columns[..index].iter().any(|(before, _)| before == name) {
            return Err(format!("{full_name} has two columns {name}"));
        }
        if matches!(kind, ColumnType::Unspecified | ColumnType::Int32) {
            return Err(format!("column {name} of {full_name} has a type that a program's table can't have"));
        }
    }
    Ok(())
}

/// Whether `text` needs no quotes in SQL, keywords excepted.
fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    text.len() <= MAX_NAME_LENGTH
        && text.bytes().next().is_some_and(letter)
        && text.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn columns(columns: &[(&str, ColumnType)]) -> Vec<(String, ColumnType)> {
        columns.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect()
    }

    #[test]
    fn a_declared_table_is_as_ours_and_is_its_wire_schema_again() {
        let wanted = columns(&[("loss", ColumnType::Float64), ("split", ColumnType::Text)]);
        let table = declare("my.metrics", &wanted).unwrap();
        assert_eq!(table.full_name(), "my.metrics");
        assert_eq!(table.columns.iter().map(|c| c.name).collect::<Vec<_>>(), ["step", "ts", "loss", "split"]);
        assert_eq!(columns_of(&table.wire_schema()).unwrap(), wanted);
        let turned: Vec<_> = wanted.iter().rev().cloned().collect();
        assert_eq!(difference(table, &turned), None);
        for (other, why) in [
            (columns(&[("loss", ColumnType::Int64), ("split", ColumnType::Text)]), "its column loss is float, not int"),
            (columns(&[("loss", ColumnType::Float64)]), "it has a column split too"),
            (columns(&[("lr", ColumnType::Float64)]), "it has no column lr"),
        ] {
            assert_eq!(difference(table, &other).unwrap(), why);
        }
    }

    #[test]
    fn names_that_cannot_be_are_refused_in_words() {
        let one = columns(&[("loss", ColumnType::Float64)]);
        for name in [
            "python.mine",
            "probe.x",
            "process.metrics",
            "gpu.metrics",
            "metrics",
            "My.metrics",
            "my.",
            "a.b.c",
            "my.1",
        ] {
            assert!(declare(name, &one).unwrap_err().contains("can't be"), "{name}");
        }
        for column in ["step", "rank", "Loss", "", "a b"] {
            assert!(declare("my.t", &columns(&[(column, ColumnType::Bool)])).is_err(), "{column}");
        }
        assert!(declare("my.t", &[]).unwrap_err().contains("no columns"));
        let many: Vec<_> = (0..=MAX_COLUMNS).map(|n| (format!("c{n}"), ColumnType::Bool)).collect();
        assert!(declare("my.t", &many).unwrap_err().contains("the most"));
        assert!(declare("my.t", &columns(&[("a", ColumnType::Bool), ("a", ColumnType::Bool)])).is_err());
    }
}
