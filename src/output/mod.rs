//! How rows reach people and programs: one file a format, each written batch by batch in bounded memory.

mod arrow;
mod cell;
pub mod chart;
mod csv;
mod file;
mod json;
mod layout;
mod names;
mod number;
mod parquet;
mod records;
pub mod rows;
mod table;
mod terminal;

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use probe_client::Answer;
use probe_common::error::{Error, Result};

use ::arrow::array::RecordBatch;
use ::arrow::datatypes::{DataType, Schema, SchemaRef};
use ::arrow::error::ArrowError;
use futures::StreamExt;
pub use terminal::{Shape, Terminal};

use self::file::Unfinished;

/// `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// Aligned columns; floats rounded to 6 significant digits
    #[default]
    Table,
    /// Comma-separated with a header line; exact values
    Csv,
    /// An array of objects, one per row; exact values
    Json,
    /// One object per line; exact values
    Ndjson,
    /// An Arrow IPC stream, for pyarrow.ipc.open_stream and Polars
    Arrow,
    /// A Parquet file, compressed with zstd
    Parquet,
}

/// Where a writer writes to.
pub type Out<'a> = Box<dyn Write + Send + 'a>;

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

    /// Whether it is for programs alone.
    pub fn is_binary(self) -> bool {
        matches!(self, Self::Arrow | Self::Parquet)
    }

    /// The format that a file's name asks for by its ending, where it does.
    pub fn of_file(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "json" => Some(Self::Json),
            "ndjson" | "jsonl" => Some(Self::Ndjson),
            "arrow" | "arrows" => Some(Self::Arrow),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// Refuses to write to a terminal what no terminal shows.
    pub fn check_stdout(self) -> Result<()> {
        if !self.is_binary() || !io::stdout().is_terminal() {
            return Ok(());
        }
        let name = if self == Self::Arrow { "arrow" } else { "parquet" };
        Err(Error::usage(format!("{name} is not text, and standard output is a terminal"))
            .hint(format!("write it to a file: > rows.{name}, or query -o rows.{name}")))
    }

    /// A writer of this format for rows of `schema`; fails where the format has no such type, or where it begins with
    /// something that can't be written.
    pub fn writer<'a>(self, schema: SchemaRef, terminal: Terminal, out: Out<'a>) -> io::Result<Box<dyn Writer + 'a>> {
        Ok(match self {
            Self::Table => Box::new(table::TableWriter::new(schema, terminal, out)),
            Self::Csv => Box::new(csv::CsvWriter::new(schema, out)),
            Self::Json => Box::new(json::JsonWriter::array(&schema, out)),
            Self::Ndjson => Box::new(json::JsonWriter::lines(&schema, out)),
            Self::Arrow => Box::new(self::arrow::IpcWriter::new(&schema, out)?),
            Self::Parquet => Box::new(parquet::ParquetWriter::new(&schema, out)?),
        })
    }
}

impl Format {
    /// A writer for one answer more to the same columns, after others: CSV has its header once.
    pub fn next_writer<'a>(
        self,
        schema: SchemaRef,
        terminal: Terminal,
        out: Out<'a>,
    ) -> io::Result<Box<dyn Writer + 'a>> {
        match self {
            Self::Csv => Ok(Box::new(csv::CsvWriter::continued(schema, out))),
            format => format.writer(schema, terminal, out),
        }
    }
}

/// What was written of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Printed {
    /// Rows.
    pub rows: usize,
    /// Whether there are more that a limit kept back.
    pub more: bool,
}

/// Writes an answer, or its first `limit` rows, to standard output as it comes.
///
/// # Errors
/// The answer's, or what went wrong with standard output.
pub async fn print(answer: Answer, format: Format, limit: Option<usize>) -> Result<Printed> {
    format.check_stdout()?;
    let out = Box::new(io::BufWriter::with_capacity(1 << 16, io::stdout()));
    let mut printed = Printed::default();
    let written = match format.writer(answer.schema.clone(), Terminal::of_stdout(), out) {
        Ok(mut writer) => feed(answer, limit, writer.as_mut(), &mut printed).await?,
        Err(error) => Err(error),
    };
    // Who has stopped reading need not be told that there is more.
    printed.more &= unless_closed(written)?;
    Ok(printed)
}

/// Writes an answer, or its first `limit` rows, to a file, which appears whole or not at all.
///
/// # Errors
/// The answer's, or what went wrong with the file; it is then as it was before.
pub async fn save(answer: Answer, format: Format, limit: Option<usize>, path: &Path) -> Result<Printed> {
    let unfinished = Unfinished::create(path)?;
    let out = Box::new(io::BufWriter::with_capacity(1 << 16, unfinished.file()?));
    let failed = |error: io::Error| unfinished.failed(&error);
    let mut writer = format.writer(answer.schema.clone(), Terminal::default(), out).map_err(failed)?;
    let mut printed = Printed::default();
    feed(answer, limit, writer.as_mut(), &mut printed).await?.map_err(failed)?;
    drop(writer);
    unfinished.finish()?;
    Ok(printed)
}

/// Gives an answer's first `limit` rows to a writer. The answer's error is the outer one, the writer's the inner one;
/// `printed` says how far it came.
pub async fn feed(
    mut answer: Answer,
    limit: Option<usize>,
    writer: &mut dyn Writer,
    printed: &mut Printed,
) -> Result<io::Result<()>> {
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        let room = limit.map_or(usize::MAX, |limit| limit - printed.rows);
        printed.more = batch.num_rows() > room;
        let batch = batch.slice(0, batch.num_rows().min(room));
        printed.rows += batch.num_rows();
        if batch.num_rows() > 0
            && let Err(error) = writer.batch(&batch)
        {
            return Ok(Err(error));
        }
        if printed.more {
            break;
        }
        // An answer whose rows are always there would leave no moment for a deadline or Ctrl-C.
        tokio::task::yield_now().await;
    }
    Ok(writer.finish())
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
