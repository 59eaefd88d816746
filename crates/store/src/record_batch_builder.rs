//! Builds the record batch that a query reads, from rows of a table that the collector itself fills.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Float64Array, RecordBatch, RecordBatchOptions, StringViewArray, UInt32Array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::take;
use arrow::error::ArrowError;
use probe_common::error::{Error, Result};
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{ColumnType, Row, Table, Text};

use super::integers::wide;
use super::schema::own_schema;

/// Collects rows of one table. Their text is in a [`StringTable`] of the caller.
#[derive(Debug)]
pub struct RecordBatchBuilder {
    table: &'static Table,
    rows: BatchBuilder,
}

impl RecordBatchBuilder {
    /// An empty builder for `table`.
    pub fn new(table: &'static Table) -> Self {
        Self { table, rows: BatchBuilder::new(table) }
    }

    pub fn push<R: Row>(&mut self, row: R) {
        self.rows.push(row);
    }

    /// The rows, with the table's own columns. Ids of text are those of `strings`.
    ///
    /// # Errors
    /// An id without a text, or NULL in a column that can't be NULL: the rows are not the table's.
    pub fn finish(&self, strings: &StringTable) -> Result<RecordBatch> {
        let texts = (0..strings.len()).filter_map(|id| strings.get(Text(u32::try_from(id).ok()?)));
        let texts = StringViewArray::from_iter_values(texts);
        let columns = self.table.columns.iter().zip(self.rows.columns());
        let arrays = columns.map(|(column, (values, nulls))| array(column.kind, values, nulls, &texts));
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows.rows()));
        let batch = arrays
            .collect::<Result<Vec<ArrayRef>, ArrowError>>()
            .and_then(|arrays| RecordBatch::try_new_with_options(own_schema(self.table), arrays, &options));
        batch.map_err(|error| Error::failed(self.table.full_name()).because(error))
    }
}

/// A column from its integers, bits of floats or ids of text, and the numbers of its rows that are NULL.
fn array(kind: ColumnType, values: &[i64], nulls: &[u32], texts: &StringViewArray) -> Result<ArrayRef, ArrowError> {
    let validity = validity(values.len(), nulls);
    Ok(match kind {
        ColumnType::Float64 => {
            let values: Vec<f64> = values.iter().map(|bits| f64::from_bits(*bits as u64)).collect();
            Arc::new(Float64Array::new(values.into(), validity))
        }
        ColumnType::Bool => {
            let values = BooleanBuffer::collect_bool(values.len(), |row| values[row] != 0);
            Arc::new(BooleanArray::new(values, validity))
        }
        ColumnType::Text => {
            let ids: Vec<u32> = values.iter().map(|id| u32::try_from(*id).unwrap_or(u32::MAX)).collect();
            let ids = UInt32Array::new(ids.into(), validity);
            if let Some(id) = ids.iter().flatten().find(|id| *id as usize >= texts.len()) {
                return Err(ArrowError::ComputeError(format!("no text has the id {id}")));
            }
            take(texts as &dyn Array, &ids, None)?
        }
        ColumnType::Int32 | ColumnType::Int64 | ColumnType::Timestamp | ColumnType::Unspecified => {
            wide(values.to_vec(), validity, kind)
        }
    })
}

fn validity(rows: usize, nulls: &[u32]) -> Option<NullBuffer> {
    if nulls.is_empty() {
        return None;
    }
    let mut valid = vec![true; rows];
    nulls.iter().for_each(|row| valid[*row as usize] = false);
    Some(valid.into())
}
