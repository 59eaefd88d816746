//! Rows of small answers, a value at a time.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use futures::StreamExt;
use probe_client::Client;
use probe_common::error::Result;

/// A row of an answer that is known to be small.
pub(crate) struct AnswerRow {
    batch: RecordBatch,
    /// Index of the row in `batch`.
    index: usize,
}

impl AnswerRow {
    pub(crate) fn text(&self, column: usize) -> Option<String> {
        let column = self.batch.column(column);
        let texts = cast(column, &DataType::Utf8).ok()?;
        texts.is_valid(self.index).then(|| texts.as_string::<i32>().value(self.index).to_owned())
    }

    /// An integer, or a time in nanoseconds since 1970.
    pub(crate) fn int(&self, column: usize) -> Option<i64> {
        let numbers = cast(self.batch.column(column), &DataType::Int64).ok()?;
        numbers.is_valid(self.index).then(|| numbers.as_primitive::<Int64Type>().value(self.index))
    }

    pub(crate) fn float(&self, column: usize) -> Option<f64> {
        let numbers = cast(self.batch.column(column), &DataType::Float64).ok()?;
        numbers.is_valid(self.index).then(|| numbers.as_primitive::<Float64Type>().value(self.index))
    }

    pub(crate) fn flag(&self, column: usize) -> bool {
        let column = self.batch.column(column);
        column.as_boolean_opt().is_some_and(|flags| flags.is_valid(self.index) && flags.value(self.index))
    }
}

/// All rows of an answer that is known to be small.
pub(crate) async fn rows(client: &mut Client, sql: &str) -> Result<Vec<AnswerRow>> {
    let mut answer = client.query(sql).await?;
    let mut found = Vec::new();
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        found.extend((0..batch.num_rows()).map(|index| AnswerRow { batch: batch.clone(), index }));
    }
    Ok(found)
}
