//! Rows on their way from the store to a query: text as ids, integers and times as offsets, a value that is the same in every row
//! once. Many queries are answered without making arrays of values.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, StringViewArray, UInt32Array};
use arrow::compute::{FilterBuilder, FilterPredicate, take};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::common::ScalarValue;
use probe_proto::table::ColumnType;

use super::integers::offsets_array;

/// Some rows of a table, with some of its columns.
#[derive(Debug, Clone)]
pub struct PackedRows {
    /// Number of rows.
    pub rows: usize,
    /// The columns, each with a value for every row.
    pub columns: Vec<PackedColumn>,
}

/// A column of some rows. Their number is in [`PackedRows`].
#[derive(Debug, Clone)]
pub enum PackedColumn {
    /// The same value, or NULL, in every row.
    Constant(ScalarValue),
    /// Integers and timestamps, and floats that are times: those as multiples of 1/[`probe_proto::TIMES_PER_SECOND`].
    Offsets {
        /// The number to add to each offset.
        base: i64,
        /// Unsigned integers of one, two or four bytes.
        offsets: ArrayRef,
        /// The type of the column.
        kind: ColumnType,
    },
    /// Text.
    Text {
        /// Indices into `values`, unsigned, of one, two or four bytes; NULL where the text is NULL.
        ids: ArrayRef,
        /// Each text once, and perhaps some that no row has.
        values: Arc<StringViewArray>,
    },
    /// The array that SQL sees.
    Array(ArrayRef),
}

impl PackedRows {
    /// The same rows with the columns at these indices.
    #[must_use]
    pub fn project(&self, columns: &[usize]) -> Self {
        Self { rows: self.rows, columns: columns.iter().map(|column| self.columns[*column].clone()).collect() }
    }

    /// The rows for which `keep` is true.
    ///
    /// # Errors
    /// Arrow's.
    pub fn filter(&self, keep: &BooleanArray) -> Result<Self, ArrowError> {
        let predicate = FilterBuilder::new(keep);
        let predicate = if self.columns.len() > 1 { predicate.optimize() } else { predicate }.build();
        let columns = self.columns.iter().map(|column| column.filter(&predicate)).collect::<Result<_, _>>()?;
        Ok(Self { rows: predicate.count(), columns })
    }

    /// The first rows, at most `rows`.
    #[must_use]
    pub fn first(&self, rows: usize) -> Self {
        if rows >= self.rows {
            return self.clone();
        }
        Self { rows, columns: self.columns.iter().map(|column| column.first(rows)).collect() }
    }

    /// The record batch that SQL sees, with the columns of `schema`.
    ///
    /// # Errors
    /// Columns that are not the schema's.
    pub fn record_batch(&self, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
        let columns = self.columns.iter().map(|column| column.array(self.rows)).collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
    }
}

impl PackedColumn {
    /// The values of `rows` rows.
    ///
    /// # Errors
    /// Arrow's.
    pub fn array(&self, rows: usize) -> Result<ArrayRef, ArrowError> {
        match self {
            Self::Constant(ScalarValue::Utf8View(Some(text))) => {
                let one = StringViewArray::from_iter_values([text]);
                take(&one as &dyn Array, &UInt32Array::from_value(0, rows), None)
            }
            Self::Constant(value) => {
                value.to_array_of_size(rows).map_err(|error| ArrowError::ComputeError(error.to_string()))
            }
            Self::Offsets { base, offsets, kind } => Ok(offsets_array(offsets, *base, *kind)),
            Self::Text { ids, values } => take(values.as_ref(), ids, None),
            Self::Array(array) => Ok(Arc::clone(array)),
        }
    }

    fn filter(&self, predicate: &FilterPredicate) -> Result<Self, ArrowError> {
        Ok(match self {
            Self::Constant(value) => Self::Constant(value.clone()),
            Self::Offsets { base, offsets, kind } => {
                Self::Offsets { base: *base, offsets: predicate.filter(offsets)?, kind: *kind }
            }
            Self::Text { ids, values } => Self::Text { ids: predicate.filter(ids)?, values: Arc::clone(values) },
            Self::Array(array) => Self::Array(predicate.filter(array)?),
        })
    }

    fn first(&self, rows: usize) -> Self {
        match self {
            Self::Constant(value) => Self::Constant(value.clone()),
            Self::Offsets { base, offsets, kind } => {
                Self::Offsets { base: *base, offsets: offsets.slice(0, rows), kind: *kind }
            }
            Self::Text { ids, values } => Self::Text { ids: ids.slice(0, rows), values: Arc::clone(values) },
            Self::Array(array) => Self::Array(array.slice(0, rows)),
        }
    }
}
