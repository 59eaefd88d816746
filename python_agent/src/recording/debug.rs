//! Rows without a collector, for tests and for examining what a script records.

use probe_proto::config::Layers;
use probe_proto::decode::{self, DecodedValues};
use probe_proto::table::ColumnType;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::drain;
use super::policy::{self, RecordingPolicy};
use crate::renewable::Renewable;
use crate::shared;
use probe_trace::row_buffer::RowBuffer;

static SINK: Renewable<RowBuffer> = Renewable::new(RowBuffer::default);

/// Forgets in a forked child the rows of the parent.
pub(super) fn begin_anew() {
    SINK.renew();
}

/// Analyses what has been recorded and returns the rows: table name -> list of rows (dicts). `probe.drops` has what was lost
/// since the beginning. Only in a process without an uplink, which would take the rows itself. Error in a forked child.
#[pyfunction]
#[pyo3(signature = (last = true))]
fn take_rows<'py>(py: Python<'py>, last: bool) -> PyResult<Bound<'py, PyDict>> {
    if super::process_flag::is_child() {
        return Err(PyRuntimeError::new_err("a forked child records nothing"));
    }
    let mut sink = SINK.lock();
    drain::drain_now(&mut sink, last);
    let tables = PyDict::new(py);
    let names: Vec<_> = sink.tables().collect();
    for table in &names {
        tables.set_item(table.full_name(), PyList::empty(py))?;
    }
    for batch in sink.take() {
        let Some(table) = names.get(batch.table as usize) else { continue };
        let wrong = |error: decode::Malformed| PyValueError::new_err(error.to_string());
        let count = decode::rows(&batch).map_err(wrong)?;
        let rows: Vec<Bound<'py, PyDict>> = (0..count).map(|_| PyDict::new(py)).collect();
        for (column, packed) in table.columns.iter().zip(&batch.columns) {
            let decoded = decode::column(column.name, column.kind, column.nullable, packed, count, sink.strings.len())
                .map_err(wrong)?;
            for (index, row) in rows.iter().enumerate() {
                if !decoded.is_valid(index) {
                    row.set_item(column.name, py.None())?;
                    continue;
                }
                let value = match &decoded.values {
                    DecodedValues::Floats(bytes) => {
                        let mut float = [0_u8; 8];
                        float.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
                        row.set_item(column.name, f64::from_le_bytes(float))?;
                        continue;
                    }
                    DecodedValues::Ints(values) => values[index],
                    DecodedValues::Constant(value) => *value,
                    DecodedValues::Nulls => 0,
                };
                match column.kind {
                    ColumnType::Text => {
                        row.set_item(column.name, sink.strings.get(probe_proto::table::Text(value as u32)))?
                    }
                    ColumnType::Bool => row.set_item(column.name, value != 0)?,
                    _ => row.set_item(column.name, value)?,
                }
            }
        }
        tables.set_item(table.full_name(), rows)?;
    }
    let drops = PyDict::new(py);
    for ((table, reason), rows) in &sink.drops {
        drops.set_item((*table, *reason), *rows)?;
    }
    tables.set_item("probe.drops", drops)?;
    Ok(tables)
}

/// Analyses what has been recorded, as the background thread does, and keeps the rows for [`take_rows`].
#[pyfunction]
fn analyse(py: Python<'_>) {
    if !super::process_flag::is_child() {
        py.detach(|| drain::drain(&mut SINK.lock()));
    }
}

/// Sets `detail` as the collector would: from the next step on.
#[pyfunction]
fn set_detail(on: bool) {
    policy::set(RecordingPolicy { stride: u16::from(on), ..policy::newest() });
}

/// The stride of detail: one of this many steps carries detail; 0: none.
#[pyfunction]
fn stride() -> u16 {
    policy::in_force().stride
}

/// Sets a policy as a plan of the collector does: from step `from_step` on, steps whose number is a multiple of `stride` carry
/// detail, and these layers record. False where that step has begun.
#[pyfunction]
fn set_policy(from_step: i64, stride: u16, layers: &str, compare: bool) -> PyResult<bool> {
    let layers = Layers::parse(layers).ok_or_else(|| PyValueError::new_err("no such layers"))?;
    Ok(policy::set_from(RecordingPolicy { stride, layers, compare }, from_step))
}

/// Sets whether a snippet waits for a boundary, as the uplink does.
#[pyfunction]
fn want_boundary(wanted: bool) {
    shared::BOUNDARY_WANTED.store(wanted, std::sync::atomic::Ordering::Release);
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(take_rows, module)?)?;
    module.add_function(wrap_pyfunction!(analyse, module)?)?;
    module.add_function(wrap_pyfunction!(want_boundary, module)?)?;
    module.add_function(wrap_pyfunction!(set_detail, module)?)?;
    module.add_function(wrap_pyfunction!(stride, module)?)?;
    module.add_function(wrap_pyfunction!(set_policy, module)?)
}
