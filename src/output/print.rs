//! Answers to standard output and to files.

use std::io;
use std::path::Path;

use futures::StreamExt;
use probe_client::QueryAnswer;
use probe_common::error::{Error, Result};

use super::file::UnfinishedFile;
use super::format::OutputFormat;
use super::terminal::Terminal;
use super::writer::AnswerWriter;

/// The part of an answer that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrintedRows {
    /// Number of rows written.
    pub rows: usize,
    /// Whether there are more that a limit kept back.
    pub more: bool,
}

/// Writes an answer, or its first `limit` rows, to standard output as it comes.
///
/// # Errors
/// The answer's, or those of standard output.
pub async fn print(answer: QueryAnswer, format: OutputFormat, limit: Option<usize>) -> Result<PrintedRows> {
    format.check_stdout()?;
    let out = Box::new(io::BufWriter::with_capacity(1 << 16, io::stdout()));
    let mut printed = PrintedRows::default();
    let written = match format.writer(answer.schema.clone(), Terminal::of_stdout(), out) {
        Ok(mut writer) => feed(answer, limit, writer.as_mut(), &mut printed).await?,
        Err(error) => Err(error),
    };
    // A reader that has gone need not be told that there is more.
    printed.more &= unless_closed(written)?;
    Ok(printed)
}

/// Writes an answer, or its first `limit` rows, to a file, which appears whole or not at all.
///
/// # Errors
/// The answer's, or those of the file; the file is then as it was before.
pub async fn save(answer: QueryAnswer, format: OutputFormat, limit: Option<usize>, path: &Path) -> Result<PrintedRows> {
    let unfinished = UnfinishedFile::create(path)?;
    let out = Box::new(io::BufWriter::with_capacity(1 << 16, unfinished.file()?));
    let failed = |error: io::Error| unfinished.failed(error);
    let mut writer = format.writer(answer.schema.clone(), Terminal::default(), out).map_err(failed)?;
    let mut printed = PrintedRows::default();
    feed(answer, limit, writer.as_mut(), &mut printed).await?.map_err(failed)?;
    drop(writer);
    unfinished.finish()?;
    Ok(printed)
}

/// Gives an answer's first `limit` rows to a writer. The answer's error is the outer one, the writer's the inner one;
/// `printed` has the rows written so far.
pub async fn feed(
    mut answer: QueryAnswer,
    limit: Option<usize>,
    writer: &mut dyn AnswerWriter,
    printed: &mut PrintedRows,
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
        // Without this an answer that never waits for rows would leave no moment for a deadline or Ctrl-C.
        tokio::task::yield_now().await;
    }
    Ok(writer.finish())
}

/// Whether standard output took the bytes: false where its reader has gone (`| head`), which is no error.
pub fn unless_closed(written: io::Result<()>) -> Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::failed("standard output").because(error)),
    }
}
