//! Rows on their way from where they are kept to a query: text as ids, integers as offsets, what is the same in every
//! row once. Many questions are answered without making values of them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, StringViewArray, UInt32Array};
use arrow::compute::{FilterBuilder, FilterPredicate, take};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::common::ScalarValue;
use probe_proto::table::ColumnType;

use super::integers::offsets_array;

/// Some rows, some of their table's columns.
#[derive(Debug, Clone)]
pub struct PackedRows {
    /// How many.
    pub rows: usize,
    /// A value a row each.
    pub columns: Vec<PackedColumn>,
}

/// A column of some rows, whose number is the rows'.
#[derive(Debug, Clone)]
pub enum PackedColumn {
    /// The same value, or NULL, in every row.
    Constant(ScalarValue),
    /// Integers and timestamps.
    Offsets {
        /// What is to be added to each.
        base: i64,
        /// Unsigned, of one, two or four bytes.
        offsets: ArrayRef,
        /// What they are.
        kind: ColumnType,
    },
    /// Text.
    Text {
        /// Places in `values`, unsigned, of one, two or four bytes; NULL where the text is.
        ids: ArrayRef,
        /// Each text once, and perhaps some that no row has.
        values: Arc<StringViewArray>,
    },
    /// As SQL sees it.
    Array(ArrayRef),
}

impl PackedRows {
    /// Those of the columns at these indices.
    #[must_use]
    pub fn project(&self, columns: &[usize]) -> Self {
        Self { rows: self.rows, columns: columns.iter().map(|column| self.columns[*column].clone()).collect() }
    }

    /// The rows that are to be kept.
    ///
    /// # Errors
    /// Arrow's.
    pub fn filter(&self, keep: &BooleanArray) -> Result<Self, ArrowError> {
        let predicate = FilterBuilder::new(keep);
        let predicate = if self.columns.len() > 1 { predicate.optimize() } else { predicate }.build();
        let columns = self.columns.iter().map(|column| column.filter(&predicate)).collect::<Result<_, _>>()?;
        Ok(Self { rows: predicate.count(), columns })
    }

    /// The first rows, at most so many.
    #[must_use]
    pub fn first(&self, rows: usize) -> Self {
        if rows >= self.rows {
            return self.clone();
        }
        Self { rows, columns: self.columns.iter().map(|column| column.first(rows)).collect() }
    }

    /// As SQL sees them, with the columns of `schema`.
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
