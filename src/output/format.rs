//! `--format`: the writer of rows.

use std::io::{self, IsTerminal};
use std::path::Path;

use ::arrow::datatypes::SchemaRef;
use probe_common::error::{Error, Result};

use super::terminal::Terminal;
use super::writer::{AnswerWriter, BoxedOutput};
use super::{arrow, csv, json, json_rows, parquet, table};

/// `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OutputFormat {
    /// Aligned columns; floats rounded to 6 significant digits
    #[default]
    Table,
    /// Comma-separated with a header line; exact values
    Csv,
    /// An array of objects, one per row; exact values
    Json,
    /// One object per line; exact values
    Ndjson,
    /// A line of columns and types, an array per row, a line with the count; exact, with NaN and nanoseconds
    JsonRows,
    /// An Arrow IPC stream, for pyarrow.ipc.open_stream and Polars
    Arrow,
    /// A Parquet file, compressed with zstd
    Parquet,
}

/// Rows that the table format shows without `--limit-rows`.
pub const TABLE_ROWS: usize = 10_000;

impl OutputFormat {
    /// The default limit of rows: the table format holds them all before it can set widths.
    pub fn default_rows(self) -> Option<usize> {
        (self == Self::Table).then_some(TABLE_ROWS)
    }

    /// Whether the format is for programs alone.
    pub fn is_binary(self) -> bool {
        matches!(self, Self::Arrow | Self::Parquet)
    }

    /// The format of the ending of a file's name. Without one it is a table.
    ///
    /// # Errors
    /// The ending is of none of the formats.
    pub fn of_file(path: &Path) -> Result<Self> {
        let Some(ending) = path.extension() else { return Ok(Self::Table) };
        match ending.to_str().unwrap_or_default() {
            "csv" => Ok(Self::Csv),
            "json" => Ok(Self::Json),
            "ndjson" | "jsonl" => Ok(Self::Ndjson),
            "arrow" | "arrows" => Ok(Self::Arrow),
            "parquet" => Ok(Self::Parquet),
            "txt" | "log" | "out" => Ok(Self::Table),
            _ => Err(Error::usage(format!("{} has no known extension", path.display()))
                .hint("name it .csv, .json, .ndjson, .arrow or .parquet, or .txt for a table")),
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
    pub fn writer<'a>(
        self,
        schema: SchemaRef,
        terminal: Terminal,
        out: BoxedOutput<'a>,
    ) -> io::Result<Box<dyn AnswerWriter + 'a>> {
        Ok(match self {
            Self::Table => Box::new(table::TableWriter::new(schema, terminal, out)),
            Self::Csv => Box::new(csv::CsvWriter::new(schema, out)),
            Self::Json => Box::new(json::JsonWriter::array(&schema, out)),
            Self::Ndjson => Box::new(json::JsonWriter::lines(&schema, out)),
            Self::JsonRows => Box::new(json_rows::JsonRowsWriter::new(&schema, out)?),
            Self::Arrow => Box::new(arrow::IpcWriter::new(&schema, out)?),
            Self::Parquet => Box::new(parquet::ParquetWriter::new(&schema, out)?),
        })
    }

    /// A writer for a further answer with the same columns: CSV has its header once.
    pub fn next_writer<'a>(
        self,
        schema: SchemaRef,
        terminal: Terminal,
        out: BoxedOutput<'a>,
    ) -> io::Result<Box<dyn AnswerWriter + 'a>> {
        match self {
            Self::Csv => Ok(Box::new(csv::CsvWriter::continued(schema, out))),
            format => format.writer(schema, terminal, out),
        }
    }
}
