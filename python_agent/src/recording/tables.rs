//! Tables that the program declares, and its rows on their way to the background thread.
//!
//! Rows wait behind one lock, which the background thread takes ten times a second to take them out, and never while it
//! waits for anything. So an append by training's thread waits for another append at most. What waits is bounded, and
//! what has no room is counted.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use probe_proto::table::{ColumnType, Table};
use probe_proto::tables::custom;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString};

use super::clock::unix_ns;
use super::policy::{Layer, is_on};
use super::thread::{self, RECORD};
use super::{process_flag, scalar, shape, spans};
use crate::shared::{self, ENABLED, STEP, lock};
use crate::terminal::say;
use probe_trace::custom::{CustomRow, CustomValue};
use probe_trace::row_buffer::RowBuffer;

/// Bytes of rows of all tables that may wait between two drains.
const MAX_WAITING: usize = 4 << 20;

/// Why rows are not kept; the index of a reason is that of its counter in [`DeclaredTable::dropped`].
const REASONS: [&str; 4] = ["too many at once", "text too long", "number too large", "table refused"];
const TOO_MANY: usize = 0;
const LONG_TEXT: usize = 1;
const LARGE_NUMBER: usize = 2;
const REFUSED: usize = 3;

#[derive(Debug)]
struct DeclaredTable {
    table: &'static Table,
    name: &'static str,
    rows: Vec<CustomRow>,
    dropped: [u64; REASONS.len()],
    refused: bool,
}

#[derive(Debug)]
pub(super) struct DeclaredTables {
    tables: Vec<DeclaredTable>,
    bytes: usize,
}

pub(super) static ALL: Mutex<DeclaredTables> = Mutex::new(DeclaredTables { tables: Vec::new(), bytes: 0 });

/// Moves the waiting rows into `sink`. For the background thread.
pub(super) fn drain(sink: &mut RowBuffer) {
    let taken: Vec<_> = {
        let mut all = lock(&ALL);
        all.bytes = 0;
        let take = |entry: &mut DeclaredTable| {
            (entry.table, entry.name, std::mem::take(&mut entry.rows), std::mem::take(&mut entry.dropped))
        };
        all.tables.iter_mut().map(take).collect()
    };
    for (table, name, rows, dropped) in taken {
        let index = sink.index_of(table);
        for (reason, rows) in REASONS.iter().zip(dropped).filter(|(_, rows)| *rows > 0) {
            sink.dropped(name, reason, rows);
        }
        rows.iter().for_each(|row| sink.push_values(index, name, row));
    }
}

/// Ends a table whose rows the collector does not keep: `message` says why.
pub fn refuse(table: &str, message: &str) {
    let mut all = lock(&ALL);
    let Some(entry) = all.tables.iter_mut().find(|entry| entry.name == table) else { return };
    if std::mem::replace(&mut entry.refused, true) {
        return;
    }
    drop(all);
    let what = format!("rows of {table} are not kept: {message}");
    *lock(&shared::PROBLEM) = what.clone();
    say(&format!("{what}; training goes on; hint: declare it alike on all ranks, or under another name"));
}

/// Declares a table, or finds the one that is declared alike. Returns its index. ValueError where it can't be declared.
#[pyfunction]
fn declare_table(name: &str, columns: Vec<(String, String)>) -> PyResult<usize> {
    let kind = |word: &str| {
        let kinds = [ColumnType::Int64, ColumnType::Float64, ColumnType::Bool, ColumnType::Text, ColumnType::Timestamp];
        kinds.into_iter().find(|kind| custom::words(*kind) == word).unwrap_or(ColumnType::Unspecified)
    };
    let columns: Vec<_> = columns.into_iter().map(|(name, word)| (name, kind(&word))).collect();
    let mut all = lock(&ALL);
    if let Some(index) = all.tables.iter().position(|entry| entry.name == name) {
        return match custom::difference(all.tables[index].table, &columns) {
            None => Ok(index),
            Some(how) => Err(PyValueError::new_err(format!("{name} is declared already, and differs: {how}"))),
        };
    }
    if all.tables.len() >= custom::MAX_TABLES {
        let most = custom::MAX_TABLES;
        return Err(PyValueError::new_err(format!("{most} tables are declared already; {name} would be one too many")));
    }
    let table = custom::declare(name, &columns).map_err(PyValueError::new_err)?;
    let name: &'static str = Box::leak(table.full_name().into_boxed_str());
    all.tables.push(DeclaredTable { table, name, rows: Vec::new(), dropped: [0; REASONS.len()], refused: false });
    Ok(all.tables.len() - 1)
}

/// The step that a row appended now belongs to; None where nothing is recorded.
fn step_now() -> Option<i64> {
    if process_flag::is_child() || !spans::wants_metrics() || !ENABLED.load(Ordering::Relaxed) || !is_on(Layer::Metrics)
    {
        return None;
    }
    thread::with(|state| {
        let is_over = state.between_steps.get() && !state.data_seen.get();
        (state.mode.get() == RECORD).then(|| STEP.load(Ordering::Relaxed) - i64::from(is_over))
    })
}

/// Appends a row. TypeError for a column that is not the table's, and for a value of another type.
#[pyfunction]
fn append_row(index: usize, values: &Bound<'_, PyDict>) -> PyResult<()> {
    let Some(table) = declared(index) else { return Ok(()) };
    let own = &table.columns[2..];
    for name in values.keys() {
        let known = name.cast::<PyString>().is_ok_and(|name| own.iter().any(|c| name.to_string_lossy() == c.name));
        if !known {
            let names: Vec<&str> = own.iter().map(|column| column.name).collect();
            let what = format!("{} has no column {name}; it has {}", table.full_name(), names.join(", "));
            return Err(PyTypeError::new_err(what));
        }
    }
    let mut row = Vec::with_capacity(own.len());
    let mut reason = None;
    for column in own {
        match values.get_item(column.name)? {
            None => row.push(CustomValue::Null),
            Some(value) => match read(&value, column.kind) {
                Ok(value) => row.push(value),
                Err(UnstoredValue::Counted(why)) => reason = Some(why),
                Err(UnstoredValue::Raised) => return Err(wrong(table, column.name, column.kind, &value)),
            },
        }
    }
    if let Some(step) = step_now() {
        keep(index, step, reason.map_or(Ok(row), Err));
    }
    Ok(())
}

/// Appends rows, given as a list a column, all of one length. TypeError for a value of another type; then none is kept.
#[pyfunction]
fn append_columns(index: usize, columns: Vec<Bound<'_, PyList>>, count: usize) -> PyResult<()> {
    let Some(table) = declared(index) else { return Ok(()) };
    let own = &table.columns[2..];
    let mut rows: Vec<Result<Vec<CustomValue>, usize>> =
        (0..count).map(|_| Ok(Vec::with_capacity(own.len()))).collect();
    for (column, values) in own.iter().zip(&columns) {
        if values.len() != count {
            return Err(PyValueError::new_err(format!(
                "column {} has {} of {count} values",
                column.name,
                values.len()
            )));
        }
        for (row, value) in rows.iter_mut().zip(values.iter()) {
            match (read(&value, column.kind), &mut *row) {
                (Ok(value), Ok(values)) => values.push(value),
                (Err(UnstoredValue::Counted(why)), row) => *row = Err(why),
                (Err(UnstoredValue::Raised), _) => return Err(wrong(table, column.name, column.kind, &value)),
                (_, Err(_)) => {}
            }
        }
    }
    if let Some(step) = step_now() {
        rows.into_iter().for_each(|row| keep(index, step, row));
    }
    Ok(())
}

fn declared(index: usize) -> Option<&'static Table> {
    if process_flag::is_child() { None } else { lock(&ALL).tables.get(index).map(|entry| entry.table) }
}

/// Why a value can't be stored in its column.
enum UnstoredValue {
    /// The row is counted as lost, for this reason.
    Counted(usize),
    /// The value has another type, which is the program's mistake.
    Raised,
}

fn read(value: &Bound<'_, PyAny>, kind: ColumnType) -> Result<CustomValue, UnstoredValue> {
    if value.is_none() {
        return Ok(CustomValue::Null);
    }
    let py = value.py();
    // SAFETY: a living object.
    let is_tensor = unsafe { shape::is_tensor(value.as_ptr()) };
    if is_tensor {
        if !scalar::is_on_host(value) {
            // Reading it would wait for the device.
            return Ok(CustomValue::Null);
        }
        let item = scalar::item(value).map_err(|_| UnstoredValue::Raised)?;
        return read(&item, kind);
    }
    let whole = || match value.extract::<i64>() {
        Ok(number) => Ok(CustomValue::Int(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => Err(UnstoredValue::Counted(LARGE_NUMBER)),
        Err(_) => Err(UnstoredValue::Raised),
    };
    match kind {
        ColumnType::Int64 if !value.is_instance_of::<PyBool>() => whole(),
        ColumnType::Timestamp => whole(),
        ColumnType::Float64 => match spans::number(value) {
            Ok(number) => Ok(CustomValue::Float(number)),
            Err(_) => Err(UnstoredValue::Raised),
        },
        ColumnType::Bool => {
            value.extract::<bool>().map(|is| CustomValue::Int(i64::from(is))).map_err(|_| UnstoredValue::Raised)
        }
        ColumnType::Text => {
            let text = value.cast::<PyString>().map_err(|_| UnstoredValue::Raised)?;
            let text = text.to_string_lossy();
            match text.len() > custom::MAX_TEXT_LENGTH {
                true => Err(UnstoredValue::Counted(LONG_TEXT)),
                false => Ok(CustomValue::Text(text.as_ref().into())),
            }
        }
        _ => Err(UnstoredValue::Raised),
    }
}

fn wrong(table: &Table, column: &str, kind: ColumnType, value: &Bound<'_, PyAny>) -> PyErr {
    let type_name = value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "column {column} of {} is {}, not {type_name}",
        table.full_name(),
        custom::words(kind)
    ))
}

fn keep(index: usize, step: i64, row: Result<Vec<CustomValue>, usize>) {
    let mut all = lock(&ALL);
    let waiting = all.bytes;
    let Some(entry) = all.tables.get_mut(index) else { return };
    let values = match row {
        Ok(values) if !entry.refused => values,
        Ok(_) => return entry.dropped[REFUSED] += 1,
        Err(why) => return entry.dropped[why] += 1,
    };
    let text = |value: &CustomValue| if let CustomValue::Text(text) = value { text.len() } else { 0 };
    let bytes =
        size_of::<CustomRow>() + values.iter().map(|value| size_of::<CustomValue>() + text(value)).sum::<usize>();
    if waiting + bytes > MAX_WAITING {
        return entry.dropped[TOO_MANY] += 1;
    }
    entry.rows.push(CustomRow { step, unix_ns: unix_ns(), values });
    all.bytes += bytes;
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(declare_table, module)?)?;
    module.add_function(wrap_pyfunction!(append_row, module)?)?;
    module.add_function(wrap_pyfunction!(append_columns, module)?)
}
