//! The answer to a query, by column: numbers as floats, everything else as text.

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use futures::StreamExt;

use probe_client::Client;
use probe_common::error::{Error, Result};

/// The values of a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ColumnValues {
    Numbers(Vec<Option<f64>>),
    /// Booleans, stored as 1 and 0.
    Flags(Vec<Option<f64>>),
    Texts(Vec<Option<String>>),
}

/// A whole answer in memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AnswerRows {
    pub(crate) columns: Vec<(String, ColumnValues)>,
    pub(crate) count: usize,
}

/// Runs a query, and reads the whole answer.
///
/// # Errors
/// The query's errors.
pub(crate) async fn ask(client: &mut Client, sql: &str) -> Result<AnswerRows> {
    let mut answer = client.query(sql).await?;
    let column = |kind: &DataType| match kind {
        DataType::Boolean => ColumnValues::Flags(Vec::new()),
        kind if kind.is_numeric() => ColumnValues::Numbers(Vec::new()),
        _ => ColumnValues::Texts(Vec::new()),
    };
    let fields = answer.schema.fields().iter();
    let mut rows = AnswerRows {
        columns: fields.map(|field| (field.name().clone(), column(field.data_type()))).collect(),
        count: 0,
    };
    let failed = |error: arrow::error::ArrowError| Error::caused(error);
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        rows.count += batch.num_rows();
        for (values, (_, column)) in batch.columns().iter().zip(&mut rows.columns) {
            match column {
                ColumnValues::Numbers(found) | ColumnValues::Flags(found) => {
                    let numbers = cast(values, &DataType::Float64).map_err(failed)?;
                    found.extend(numbers.as_primitive::<Float64Type>().iter());
                }
                ColumnValues::Texts(found) => {
                    let texts = cast(values, &DataType::Utf8).map_err(failed)?;
                    let texts = texts.as_string::<i32>();
                    found.extend((0..texts.len()).map(|row| texts.is_valid(row).then(|| texts.value(row).to_owned())));
                }
            }
        }
    }
    Ok(rows)
}

impl AnswerRows {
    pub(crate) fn column(&self, name: &str) -> Option<&ColumnValues> {
        self.columns.iter().find(|(column, _)| column == name).map(|(_, column)| column)
    }

    /// A number of a column; None also where there is no such column, or its values are texts.
    pub(crate) fn number(&self, name: &str, row: usize) -> Option<f64> {
        match self.column(name)? {
            ColumnValues::Numbers(values) | ColumnValues::Flags(values) => values.get(row).copied().flatten(),
            ColumnValues::Texts(_) => None,
        }
    }

    /// A number of a column as an integer.
    pub(crate) fn int(&self, name: &str, row: usize) -> Option<i64> {
        self.number(name, row).map(|value| value as i64)
    }

    /// A value of a column as text.
    pub(crate) fn text(&self, name: &str, row: usize) -> Option<String> {
        match self.column(name)? {
            ColumnValues::Numbers(values) => values.get(row).copied().flatten().map(|value| value.to_string()),
            ColumnValues::Flags(values) => values.get(row).copied().flatten().map(|value| (value == 1.0).to_string()),
            ColumnValues::Texts(values) => values.get(row).cloned().flatten(),
        }
    }
}
