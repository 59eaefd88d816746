//! The rows of a source in order of time, a piece at a time: the memory does not grow with the number of rows.

use std::collections::VecDeque;

use arrow::array::ArrayRef;
use futures::StreamExt;
use probe_client::Client;
use probe_common::error::Result;

use super::drawing::TimelineDrawing;
use super::row::{ExportRow, columns};
use super::sources::DrawnTable;

/// Rows of a piece, unless more have the same time.
const MAX_ROWS: u64 = 8192;
/// Parts that a span of time is divided into where it has more.
const PARTS: i64 = 128;

/// A source that is being read.
pub(super) struct SourceCursor {
    source: &'static DrawnTable,
    condition: String,
    /// Number of rows.
    pub(crate) rows: u64,
    /// When the first row begins (ns).
    pub(crate) first: i64,
    /// Spans of time that are still to be read, from and before, with the rows in each where they were counted.
    spans: VecDeque<(i64, i64, u64)>,
    batches: VecDeque<Vec<ArrayRef>>,
    /// Index of the current row in the first batch.
    index: usize,
}

impl SourceCursor {
    /// Counts the rows.
    ///
    /// # Errors
    /// The query's.
    pub(super) async fn open(client: &mut Client, source: &'static DrawnTable, condition: String) -> Result<Self> {
        let sql = format!(
            "SELECT COUNT(ts), CAST(MIN(ts) AS BIGINT), CAST(MAX(ts) AS BIGINT) FROM {} WHERE {condition}",
            source.table
        );
        let (mut rows, mut first, mut spans) = (0, 0, VecDeque::new());
        for batch in answer(client, &sql).await? {
            let row = ExportRow { columns: &batch, index: 0 };
            if let (Some(count), Some(from), Some(last)) = (row.int(0), row.int(1), row.int(2)) {
                (rows, first) = (count as u64, from);
                spans.push_back((from, last.saturating_add(1), rows));
            }
        }
        Ok(Self { source, condition, rows, first, spans, batches: VecDeque::new(), index: 0 })
    }

    /// Whether a row is there to be drawn.
    pub(super) fn has_row(&self) -> bool {
        !self.batches.is_empty()
    }

    /// Reads until a row is there to be drawn; false at the end.
    ///
    /// # Errors
    /// The query's.
    pub(super) async fn advance(&mut self, client: &mut Client) -> Result<bool> {
        while self.batches.is_empty() {
            let Some((from, before, rows)) = self.spans.pop_front() else { return Ok(false) };
            if rows > MAX_ROWS && before - from > 1 {
                self.divide(client, from, before).await?;
                continue;
            }
            let sql = self.source.select(&self.condition, from, before);
            self.batches.extend(answer(client, &sql).await?);
            self.index = 0;
        }
        Ok(true)
    }

    /// Counts the rows in parts of a span, and puts neighbours together as far as they make one piece.
    async fn divide(&mut self, client: &mut Client, from: i64, before: i64) -> Result<()> {
        let width = (before - from) / PARTS + 1;
        let sql = format!(
            "SELECT (CAST(ts AS BIGINT) - {from}) / {width} AS part, COUNT(*) FROM {} WHERE {} GROUP BY 1 ORDER BY 1",
            self.source.table,
            self.source.within(&self.condition, from, before)
        );
        let mut spans: Vec<(i64, i64, u64)> = Vec::new();
        for batch in answer(client, &sql).await? {
            for index in 0..batch.first().map_or(0, |column| column.len()) {
                let row = ExportRow { columns: &batch, index };
                let (Some(part), Some(rows)) = (row.int(0), row.int(1)) else { continue };
                let (begin, end) = (from + part * width, (from + (part + 1) * width).min(before));
                match spans.last_mut() {
                    Some((_, last, count)) if *count + rows as u64 <= MAX_ROWS => {
                        *last = end;
                        *count += rows as u64;
                    }
                    _ => spans.push((begin, end, rows as u64)),
                }
            }
        }
        for span in spans.into_iter().rev() {
            self.spans.push_front(span);
        }
        Ok(())
    }

    /// The sort key of the current row among those of other sources.
    pub(super) fn key(&self) -> (i64, i64) {
        let row = self.row();
        (row.ts(), -row.duration().unwrap_or_default())
    }

    fn row(&self) -> ExportRow<'_> {
        ExportRow { columns: self.batches.front().map_or(&[], Vec::as_slice), index: self.index }
    }

    /// Draws the current row, and goes to the next.
    ///
    /// # Errors
    /// Those of the output.
    pub(super) fn draw(&mut self, drawing: &mut TimelineDrawing<'_>) -> std::io::Result<()> {
        (self.source.draw)(drawing, &self.row(), self.source.columns)?;
        self.index += 1;
        if self.index >= self.batches.front().and_then(|batch| batch.first()).map_or(0, |column| column.len()) {
            self.batches.pop_front();
            self.index = 0;
        }
        Ok(())
    }
}

/// All batches of an answer that is known to be small; none of them is empty.
async fn answer(client: &mut Client, sql: &str) -> Result<Vec<Vec<ArrayRef>>> {
    let mut answer = client.query(sql).await?;
    let mut batches = Vec::new();
    while let Some(batch) = answer.batches.next().await {
        let batch = batch?;
        if batch.num_rows() > 0 {
            batches.push(columns(&batch)?);
        }
    }
    Ok(batches)
}
