//! The destinations of answers: the screen, through the pager where they do not fit, or a file.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use probe_client::QueryAnswer;
use probe_common::error::{Error, Result};
use probe_proto::table::Table;

use super::pager;
use crate::cli::tables;
use crate::output::{self, OutputFormat, PrintedRows, RowLayout, Terminal, chart, feed};

/// Rows that a picture is drawn of at most: more than a terminal has dots for.
const PICTURE: usize = 1_000_000;

/// The destination of answers.
pub(super) enum AnswerSink {
    Screen,
    /// A file that gets one answer after the other.
    File {
        path: PathBuf,
        format: OutputFormat,
        file: File,
        columns: Option<SchemaRef>,
    },
    /// A file that holds one answer, whole or not at all; the next one goes to the screen again.
    Once {
        path: PathBuf,
        format: OutputFormat,
    },
}

/// An answer that was written to a file, or is held for the screen.
pub(super) struct ShownAnswer {
    printed: PrintedRows,
    text: Vec<u8>,
    file: Option<PathBuf>,
}

/// What the console says of an answer.
pub(super) struct ShownSummary {
    pub(super) rows: usize,
    /// Whether there are more that were not shown.
    pub(super) more: bool,
    pub(super) file: Option<PathBuf>,
}

impl AnswerSink {
    /// Opens the named file, which is emptied, or the screen.
    pub(super) fn open(path: Option<PathBuf>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::Screen) };
        let format = OutputFormat::of_file(&path)?;
        if matches!(format, OutputFormat::Json | OutputFormat::Arrow | OutputFormat::Parquet) {
            return Ok(Self::Once { path, format });
        }
        let file = File::create(&path).map_err(|error| failed(&path, error))?;
        Ok(Self::File { path, format, file, columns: None })
    }

    /// Takes an answer. What is for the screen is held, and shown by [`ShownAnswer::show`].
    pub(super) async fn write(&mut self, answer: QueryAnswer, shape: RowLayout, paged: bool) -> Result<ShownAnswer> {
        match self {
            Self::Screen => {
                let (text, printed) = table(answer, shape, paged).await?;
                Ok(ShownAnswer { printed, text, file: None })
            }
            Self::File { path, format, file, columns } => {
                let failed = |error: io::Error| failed(path, error);
                let again = columns.as_ref() == Some(&answer.schema);
                if columns.is_some() && *format == OutputFormat::Table {
                    io::Write::write_all(file, b"\n").map_err(failed)?;
                }
                *columns = Some(answer.schema.clone());
                let terminal = Terminal { shape, ..Terminal::default() };
                let out = Box::new(BufWriter::new(&*file));
                let writer = match again {
                    true => format.next_writer(answer.schema.clone(), terminal, out),
                    false => format.writer(answer.schema.clone(), terminal, out),
                };
                let mut printed = PrintedRows::default();
                let limit = format.default_rows();
                feed(answer, limit, writer.map_err(failed)?.as_mut(), &mut printed).await?.map_err(failed)?;
                Ok(ShownAnswer { printed, text: Vec::new(), file: Some(path.clone()) })
            }
            Self::Once { path, format } => {
                let (path, format) = (path.clone(), *format);
                let printed = output::save(answer, format, None, &path).await?;
                *self = Self::Screen;
                Ok(ShownAnswer { printed, text: Vec::new(), file: Some(path) })
            }
        }
    }
}

impl ShownAnswer {
    /// Shows an answer that is held for the screen.
    pub(super) fn show(self, paged: bool) -> Result<ShownSummary> {
        if self.file.is_none() {
            pager::show(&self.text, paged)?;
        }
        Ok(ShownSummary { rows: self.printed.rows, more: self.printed.more, file: self.file })
    }
}

/// An answer as a table for the screen. What a pager shows may be wider.
async fn table(answer: QueryAnswer, shape: RowLayout, paged: bool) -> Result<(Vec<u8>, PrintedRows)> {
    let mut text = Vec::new();
    let mut printed = PrintedRows::default();
    let mut writer = OutputFormat::Table.writer(answer.schema.clone(), terminal(shape, paged), Box::new(&mut text))?;
    feed(answer, OutputFormat::Table.default_rows(), writer.as_mut(), &mut printed).await??;
    drop(writer);
    Ok((text, printed))
}

/// Shows rows that this process made, as a table.
pub(super) fn columns(columns: Vec<(&str, ArrayRef)>, shape: RowLayout, paged: bool) -> Result<()> {
    let columns = columns.into_iter().map(|(name, values)| (name, values, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).map_err(Error::caused)?;
    let mut text = Vec::new();
    let mut writer = OutputFormat::Table.writer(batch.schema(), terminal(shape, paged), Box::new(&mut text))?;
    writer.batch(&batch).and_then(|()| writer.finish())?;
    drop(writer);
    pager::show(&text, paged)
}

/// A table's columns, and queries to begin with.
fn table_of(table: &'static Table, width: Option<usize>) -> String {
    let mut text = tables::describe(table, width);
    text.push_str("\nExamples:\n");
    for example in table.examples {
        text.push_str(&format!("  {example};\n"));
    }
    text
}

/// Shows the page of a table, in the pager if `paged`.
pub(super) fn table_page(table: &'static Table, paged: bool) -> Result<()> {
    text(&table_of(table, Terminal::of_stdout().width), paged)
}

/// Shows text unchanged.
pub(super) fn text(text: &str, paged: bool) -> Result<()> {
    pager::show(text.as_bytes(), paged)
}

/// An answer as a picture.
pub(super) async fn picture(mut answer: QueryAnswer, kind: Option<chart::ChartKind>) -> Result<String> {
    let (mut batches, mut rows) = (Vec::new(), 0);
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        rows += batch.num_rows();
        if rows > PICTURE {
            return Err(Error::limit(format!("the answer has more than {PICTURE} rows to draw"))
                .hint("GROUP BY step, or a LIMIT, makes them fewer"));
        }
        batches.push(batch);
    }
    chart::draw(&answer.schema, &batches, kind, Terminal::of_stdout())
}

fn terminal(shape: RowLayout, paged: bool) -> Terminal {
    let wide = shape == RowLayout::Fit && paged && pager::scrolls_sideways();
    Terminal { shape: if wide { RowLayout::Wide } else { shape }, ..Terminal::of_stdout() }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::failed(path.display().to_string()).because(error).hint(r"\o without a name shows answers here again")
}
