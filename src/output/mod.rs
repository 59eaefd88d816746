//! How rows reach people and programs: one file a format, each written batch by batch in bounded memory.

mod cell;
mod csv;
mod json;
mod layout;
mod number;
mod records;
pub mod rows;
mod table;
mod terminal;

use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use futures::StreamExt;
pub use terminal::Terminal;

use crate::client::Answer;
use crate::error::{Error, Result};

/// `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// Columns for people; floats rounded to 6 significant digits
    #[default]
    Table,
    /// Comma-separated with a header line; exact values
    Csv,
    /// An array of objects, one a row; exact values
    Json,
    /// An object a line, one a row; exact values
    Ndjson,
}

/// Rows that the table format shows where `--limit-rows` does not say.
pub const TABLE_ROWS: usize = 10_000;

/// Takes an answer batch by batch and writes it somewhere.
pub trait Writer {
    /// One batch of the answer's schema.
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()>;
    /// The end of the answer: what has been held back is written.
    fn finish(&mut self) -> io::Result<()>;
}

impl Format {
    /// Rows to show where nobody says: the table format holds them all before it can set widths.
    pub fn default_rows(self) -> Option<usize> {
        (self == Self::Table).then_some(TABLE_ROWS)
    }

    /// A writer of this format for rows of `schema`.
    pub fn writer<'a>(self, schema: SchemaRef, terminal: Terminal, out: Box<dyn Write + 'a>) -> Box<dyn Writer + 'a> {
        match self {
            Self::Table => Box::new(table::TableWriter::new(schema, terminal, out)),
            Self::Csv => Box::new(csv::CsvWriter::new(schema, out)),
            Self::Json => Box::new(json::JsonWriter::array(&schema, out)),
            Self::Ndjson => Box::new(json::JsonWriter::lines(&schema, out)),
        }
    }
}

/// What was printed of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Printed {
    /// Rows.
    pub rows: usize,
    /// Whether there are more that a limit kept back.
    pub more: bool,
}

/// Writes an answer, or its first `limit` rows, to standard output as it comes.
pub async fn print(mut answer: Answer, format: Format, limit: Option<usize>) -> Result<Printed> {
    let out = Box::new(io::BufWriter::with_capacity(1 << 16, io::stdout()));
    let mut writer = format.writer(answer.schema, Terminal::of_stdout(), out);
    let mut printed = Printed { rows: 0, more: false };
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        let room = limit.map_or(usize::MAX, |limit| limit - printed.rows);
        printed.more = batch.num_rows() > room;
        let batch = batch.slice(0, batch.num_rows().min(room));
        printed.rows += batch.num_rows();
        if batch.num_rows() > 0 && !unless_closed(writer.batch(&batch))? {
            return Ok(printed);
        }
        if printed.more {
            break;
        }
    }
    unless_closed(writer.finish())?;
    Ok(printed)
}

/// Whether standard output took it: false where its reader has gone (`| head`), which is no error.
pub fn unless_closed(written: io::Result<()>) -> Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::failed(format!("standard output: {error}"))),
    }
}

/// What went wrong while writing, as an input/output error: a closed pipe stays recognisable.
fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// How times are written for programs (RFC 3339, nanoseconds kept): without a zone, which here means UTC, and with one.
fn time_formats(schema: &Schema) -> (&'static str, &'static str) {
    const UTC: &str = "%Y-%m-%dT%H:%M:%S%.fZ";
    let is_utc = |kind: &DataType| match kind {
        DataType::Timestamp(_, Some(zone)) => matches!(&**zone, "UTC" | "+00:00" | "Z" | "GMT"),
        // A nested type may hide another zone.
        kind => !kind.is_nested(),
    };
    let zoned =
        if schema.fields().iter().all(|field| is_utc(field.data_type())) { UTC } else { "%Y-%m-%dT%H:%M:%S%.f%:z" };
    (UTC, zoned)
}
