//! Rows of an answer, a value at a time, without copies.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use futures::StreamExt;
use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_export::{Argument, ArgumentValue};

/// Columns with which every source begins.
pub(super) const HOST: usize = 0;
pub(super) const PID: usize = 1;
pub(super) const CAPTURE: usize = 2;
pub(super) const TS: usize = 3;
pub(super) const DURATION: usize = 4;
/// The first of a source's own columns.
pub(super) const OWN: usize = 5;

/// A column that a source asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExportColumn {
    pub(crate) sql: &'static str,
    /// Name of the value in an event; empty for a column that is not shown.
    pub(crate) argument: &'static str,
    pub(crate) is_json: bool,
}

/// A column that is no value of the event.
pub(super) const fn hidden(sql: &'static str) -> ExportColumn {
    ExportColumn { sql, argument: "", is_json: false }
}

/// A value that is called like the column.
pub(super) const fn plain(sql: &'static str) -> ExportColumn {
    ExportColumn { sql, argument: sql, is_json: false }
}

/// A value with a name of its own.
pub(super) const fn named(sql: &'static str, argument: &'static str) -> ExportColumn {
    ExportColumn { sql, argument, is_json: false }
}

/// A value whose text is JSON.
pub(super) const fn json(sql: &'static str, argument: &'static str) -> ExportColumn {
    ExportColumn { sql, argument, is_json: true }
}

/// Columns of a batch, as integers, floats, booleans and text.
pub(super) fn columns(batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
    let column = |array: &ArrayRef| match array.data_type() {
        DataType::Int64 | DataType::Float64 | DataType::Boolean | DataType::Utf8 => Ok(array.clone()),
        DataType::Null => cast(array, &DataType::Float64),
        kind if kind.is_integer() || kind.is_temporal() => cast(array, &DataType::Int64),
        kind if kind.is_floating() => cast(array, &DataType::Float64),
        _ => cast(array, &DataType::Utf8),
    };
    let columns = batch.columns().iter().map(column).collect::<Result<Vec<_>, _>>();
    columns.map_err(Error::caused)
}

/// A row of a batch.
#[derive(Clone, Copy)]
pub(super) struct ExportRow<'a> {
    pub(crate) columns: &'a [ArrayRef],
    /// Index of the row in its batch.
    pub(crate) index: usize,
}

impl<'a> ExportRow<'a> {
    fn is_known(&self, column: usize) -> Option<&'a ArrayRef> {
        self.columns.get(column).filter(|array| array.is_valid(self.index))
    }

    pub(super) fn text(&self, column: usize) -> Option<&'a str> {
        Some(self.is_known(column)?.as_string_opt::<i32>()?.value(self.index))
    }

    pub(super) fn int(&self, column: usize) -> Option<i64> {
        Some(self.is_known(column)?.as_primitive_opt::<Int64Type>()?.value(self.index))
    }

    pub(super) fn float(&self, column: usize) -> Option<f64> {
        Some(self.is_known(column)?.as_primitive_opt::<Float64Type>()?.value(self.index))
    }

    pub(super) fn flag(&self, column: usize) -> bool {
        self.is_known(column).and_then(|array| array.as_boolean_opt()).is_some_and(|flags| flags.value(self.index))
    }

    pub(super) fn ts(&self) -> i64 {
        self.int(TS).unwrap_or_default()
    }

    /// The duration in nanoseconds; None where it is not known.
    pub(super) fn duration(&self) -> Option<i64> {
        self.float(DURATION).filter(|seconds| seconds.is_finite()).map(|seconds| (seconds * 1e9).round() as i64)
    }

    /// The values of `own` columns that are values of the event and not NULL.
    pub(super) fn arguments(&self, own: &[ExportColumn]) -> Vec<Argument<'a>> {
        let value = |own_index: usize, column: &ExportColumn| {
            let array = self.is_known(OWN + own_index)?;
            Some(match array.data_type() {
                DataType::Int64 => ArgumentValue::Int(self.int(OWN + own_index)?),
                DataType::Float64 => ArgumentValue::Float(self.float(OWN + own_index)?),
                DataType::Boolean => ArgumentValue::Bool(self.flag(OWN + own_index)),
                _ if column.is_json => ArgumentValue::Json(self.text(OWN + own_index)?),
                _ => ArgumentValue::Text(self.text(OWN + own_index)?),
            })
        };
        let shown = own.iter().enumerate().filter(|(_, column)| !column.argument.is_empty());
        shown.filter_map(|(own_index, column)| Some((column.argument, value(own_index, column)?))).collect()
    }
}

/// Calls `visit` with every row of an answer.
///
/// # Errors
/// The query's.
pub(super) async fn each(client: &mut Client, sql: &str, mut visit: impl FnMut(ExportRow<'_>)) -> Result<()> {
    let mut answer = client.query(sql).await?;
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        let columns = columns(&batch)?;
        (0..batch.num_rows()).for_each(|index| visit(ExportRow { columns: &columns, index }));
    }
    Ok(())
}
