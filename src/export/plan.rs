//! [`ExportPlan`]: the rows of what was chosen, of all tables merged in order of time.

use std::io;

use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_export::{Timeline, TraceFormat, WrittenCounts};

use super::choice::ExportChoice;
use super::cursor::SourceCursor;
use super::drawing::TimelineDrawing;
use super::sources::SOURCES;

/// The rows to write, by source, and when the first of them began.
pub(crate) struct ExportPlan<'a> {
    choice: &'a ExportChoice,
    cursors: Vec<SourceCursor>,
    /// Rows of all sources.
    pub(crate) rows: u64,
    /// Rows of operators.
    pub(crate) operators: u64,
    /// The zero of written times (ns since 1970); 0 where no clock is known.
    pub(crate) base: i64,
}

impl<'a> ExportPlan<'a> {
    /// Counts the rows of what was chosen.
    ///
    /// # Errors
    /// The queries'.
    pub(crate) async fn new(client: &mut Client, choice: &'a ExportChoice) -> Result<Self> {
        let mut cursors = Vec::new();
        let mut first = i64::MAX;
        let (mut rows, mut operators) = (0, 0);
        for source in SOURCES {
            let Some(condition) = source.condition(choice) else { continue };
            let cursor = SourceCursor::open(client, source, condition).await?;
            if cursor.rows == 0 {
                continue;
            }
            rows += cursor.rows;
            if source.table == "python.operators" {
                operators += cursor.rows;
            }
            first = first.min(cursor.first);
            cursors.push(cursor);
        }
        if rows == 0 {
            return Err(choice.nothing());
        }
        Ok(Self { choice, cursors, rows, operators, base: choice.time_zero(first) })
    }

    /// Whether times are from 1970 on.
    pub(crate) fn is_unix(&self) -> bool {
        self.choice.is_unix()
    }

    /// Whether the export is one file for each process, as other tools read them.
    pub(crate) fn is_per_rank(&self) -> bool {
        self.choice.per_rank
    }

    /// Draws all rows. `progress` is called with the number of rows drawn so far.
    ///
    /// # Errors
    /// The queries'; those of the output, which `failed` turns into an [`Error`].
    pub(crate) async fn write(
        mut self,
        client: &mut Client,
        format: Box<dyn TraceFormat + '_>,
        progress: &mut dyn FnMut(u64),
        failed: &dyn Fn(io::Error) -> Error,
    ) -> Result<WrittenCounts> {
        let as_profiler = self.choice.per_rank && self.operators == 0;
        let mut drawing = TimelineDrawing::new(Timeline::new(format), self.choice, as_profiler).map_err(failed)?;
        let mut drawn = 0;
        loop {
            let mut next: Option<(usize, (i64, i64))> = None;
            for (index, cursor) in self.cursors.iter_mut().enumerate() {
                if !cursor.has_row() && !cursor.advance(client).await? {
                    continue;
                }
                // The row that began first and, of those, the one that lasts longest: it contains the others.
                let key = cursor.key();
                if next.is_none_or(|(_, least)| key < least) {
                    next = Some((index, key));
                }
            }
            let Some((index, _)) = next else { break };
            self.cursors[index].draw(&mut drawing).map_err(failed)?;
            drawn += 1;
            if drawn % 1024 == 0 {
                progress(drawn);
                // Without this Ctrl-C would not be noticed while no row has to be waited for.
                tokio::task::yield_now().await;
            }
        }
        drawing.timeline.finish().map_err(failed)
    }
}
