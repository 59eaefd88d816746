//! How answers look: one file a format. What a format cannot stream, it bounds.

mod csv;
mod json;
mod ndjson;
pub mod table;
pub mod value;

use std::io::{self, IsTerminal, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use clap::ValueEnum;
use futures::StreamExt;

use crate::client::Answer;
use crate::error::{Error, Result};

/// Formats of answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns for people; numbers are rounded to six digits.
    #[default]
    Table,
    /// Comma-separated values, with a header.
    Csv,
    /// One array of objects, an object a row.
    Json,
    /// An object a line.
    Ndjson,
}

/// Takes an answer's rows and writes them.
pub trait Sink {
    /// Takes the next rows; false when it wants no more.
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<bool>;
    /// Writes what is left to write.
    fn finish(&mut self, out: &mut dyn Write) -> Result<()>;
    /// What a person should know of the answer beside it (stderr); None where there is nothing.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Writes an answer to standard output. `limit_rows` cuts it; None is the format's own bound.
pub async fn print(mut answer: Answer, format: Format, limit_rows: Option<usize>) -> Result<()> {
    let screen = table::Screen::of_stdout();
    let mut sink: Box<dyn Sink> = match format {
        Format::Table => Box::new(table::Table::new(&answer.schema, limit_rows.unwrap_or(table::MOST_ROWS), screen)),
        Format::Csv => Box::new(csv::Csv::new(&answer.schema)),
        Format::Json => Box::new(json::Json::new(&answer.schema)),
        Format::Ndjson => Box::new(ndjson::Ndjson::new(&answer.schema)),
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut left = if format == Format::Table { usize::MAX } else { limit_rows.unwrap_or(usize::MAX) };
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        let batch = if batch.num_rows() > left { batch.slice(0, left) } else { batch };
        left -= batch.num_rows();
        if !sink.batch(&batch, &mut out)? || left == 0 {
            break;
        }
    }
    sink.finish(&mut out)?;
    out.flush()?;
    if let Some(note) = sink.note().filter(|_| io::stderr().is_terminal() || format == Format::Table) {
        anstream::eprintln!("{note}");
    }
    Ok(())
}

/// Rows made here rather than asked for, in any format.
pub async fn print_rows(schema: SchemaRef, batch: RecordBatch, format: Format) -> Result<()> {
    let batches = futures::stream::iter([Ok(batch)]);
    print(Answer { schema, batches: Box::pin(batches) }, format, None).await
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        // Arrow's writers wrap a closed pipe in text; the source keeps the kind.
        match error {
            ArrowError::IoError(_, error) => Self::from(error),
            other => Self::failed(other.to_string()),
        }
    }
}
