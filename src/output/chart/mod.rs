//! An answer as a picture in a terminal: lines over numbers and times, bars for everything that has a name.
//!
//! The first column is the x axis. Every other numeric column gets its own chart, below the one before it and on its own
//! scale: a loss and a step time have no axis in common. Values that are NULL or not finite are not drawn but counted.

mod bar;
mod line;
mod series;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use probe_common::error::{Error, Result};

use self::series::{Series, values};
use super::cell;
use super::terminal::Terminal;
use super::writer::io_error;

/// How to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChartKind {
    /// A line over the first column.
    Line,
    /// A bar a row.
    Bar,
}

/// Number of columns of an answer that are drawn.
const MAX_SERIES: usize = 4;

/// Draws the rows of an answer.
///
/// # Errors
/// No column has numbers, or a line can't be drawn over the first one.
pub fn draw(
    schema: &SchemaRef,
    batches: &[RecordBatch],
    kind: Option<ChartKind>,
    terminal: Terminal,
) -> Result<String> {
    let rows = concat_batches(schema, batches).map_err(io_error)?;
    let is_axis = |kind: &DataType| kind.is_numeric() || matches!(kind, DataType::Timestamp(..));
    let first = schema.fields().first().ok_or_else(|| Error::failed("the answer has no columns to draw"))?;
    // A single column is drawn over the numbers of its rows.
    let alone = schema.fields().len() == 1;
    let numbers = (usize::from(!alone)..schema.fields().len()).filter(|&at| schema.field(at).data_type().is_numeric());
    let series =
        numbers.map(|at| Ok(Series { name: schema.field(at).name().clone(), values: values(rows.column(at))? }));
    let mut series = series.collect::<Result<Vec<Series>>>()?;
    if series.is_empty() {
        return Err(Error::failed("the answer has no column of numbers to draw")
            .hint("the first column is what is drawn over, and each further column of numbers is drawn"));
    }
    let more = series.split_off(series.len().min(MAX_SERIES));
    let kind = kind.unwrap_or(if alone || is_axis(first.data_type()) { ChartKind::Line } else { ChartKind::Bar });
    let mut out = String::new();
    match kind {
        ChartKind::Bar => {
            let labels = match alone {
                true => (1..=rows.num_rows()).map(|row| Some(row.to_string())).collect(),
                false => cell::texts(rows.column(0), false)?,
            };
            for series in &series {
                bar::draw(&mut out, &labels, series, terminal);
            }
        }
        ChartKind::Line => {
            let over = match alone {
                true => line::Axis::rows(rows.num_rows()),
                false if is_axis(first.data_type()) => line::Axis::of(first.name(), rows.column(0))?,
                false => {
                    return Err(Error::failed(format!(
                        "cannot draw a line over '{}', which is not a number",
                        first.name()
                    ))
                    .hint(r"\plot bar draws a bar a row"));
                }
            };
            for series in &series {
                line::draw(&mut out, &over, series, terminal);
            }
        }
    }
    if !more.is_empty() {
        let names: Vec<&str> = more.iter().map(|series| series.name.as_str()).collect();
        out.push_str(&format!("not drawn: {}\n", names.join(", ")));
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
