//! One partition of a scan: takes parts from the queue and gives the rows that the filters keep, packed or as batches.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::BatchCoalescer;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::metrics::BaselineMetrics;
use probe_store::{GroupReader, PackedRows, RowBlock, Segment};

use super::query_task;
use super::queue::{NextPart, ScanQueue};
use super::row_filter::RowFilter;
use super::running::RunningGuard;

/// Batches that a scan reads without finding a row before it gives an empty batch, so that other tasks have their turn and an
/// abandoned query ends.
const MAX_SILENT: usize = 64;

/// One partition being read.
pub(super) struct PartitionScan {
    pub(super) queue: Arc<ScanQueue>,
    /// The indices in the table of the columns that are read.
    pub(super) table_columns: Vec<usize>,
    /// The schema of the columns that are read.
    pub(super) read: SchemaRef,
    /// The indices in `read` of the columns that come out.
    pub(super) output: Vec<usize>,
    pub(super) filter: RowFilter,
    pub(super) batch_rows: usize,
    /// Whether rows end with each part, and [`PartitionScan::next_cells`] begins the next.
    pub(super) by_part: bool,
    /// Rows that may still be given.
    pub(super) left: usize,
    pub(super) metrics: BaselineMetrics,
    pub(super) current: Option<CurrentPart>,
    /// Parts that have been begun.
    pub(super) parts: usize,
    /// Counts this scan as running while it exists.
    pub(super) _running: RunningGuard,
}

/// The part that is being read.
pub(super) enum CurrentPart {
    Segments(SegmentPosition),
    Group(GroupReader),
}

/// The position of a scan in its segments, the first of which is being read.
pub(super) struct SegmentPosition {
    /// Segments, each with the batches that may have rows for the query; None for all batches.
    segments: VecDeque<(Arc<Segment>, Option<Vec<bool>>)>,
    batch: usize,
    row: usize,
}

/// Rows that a scan has read, with the columns that come out.
pub(super) struct ScannedRows {
    pub(super) rows: PackedRows,
    /// The rows that the filters keep; None for all.
    pub(super) keep: Option<BooleanArray>,
    /// Number of rows that are kept.
    pub(super) count: usize,
}

impl ScannedRows {
    /// A bit for each row, which says whether it is kept; None for all.
    pub(super) fn bits(&self) -> Option<&BooleanBuffer> {
        self.keep.as_ref().map(BooleanArray::values)
    }
}

impl PartitionScan {
    /// The next rows that the filters keep, with the columns that come out; perhaps no rows of a batch that was read.
    pub(super) fn next_rows(&mut self) -> Option<Result<PackedRows>> {
        let rows = self.next_kept()?;
        let time = self.metrics.elapsed_compute().clone();
        let _timer = time.timer();
        let rows = rows.and_then(|ScannedRows { rows, keep, .. }| {
            let rows = keep.map_or_else(|| Ok(rows.clone()), |keep| rows.filter(&keep))?;
            Ok(rows.first(self.left))
        });
        match &rows {
            Ok(rows) => {
                self.left -= rows.rows;
                self.metrics.output_rows().add(rows.rows);
            }
            Err(_) => self.left = 0,
        }
        Some(rows)
    }

    /// The next rows with those that the filters keep, for a scan without a limit.
    pub(super) fn next_kept(&mut self) -> Option<Result<ScannedRows>> {
        let time = self.metrics.elapsed_compute().clone();
        let _timer = time.timer();
        let rows = query_task::check().and_then(|()| self.read_rows().transpose()).transpose()?;
        let kept = rows.and_then(|rows| {
            let (keep, count) = self.filter.wanted(&rows)?;
            Ok(ScannedRows { rows: rows.project(&self.output), keep, count })
        });
        if kept.is_err() {
            self.left = 0;
        }
        Some(kept)
    }

    /// Begins the next part where none is being read. Gives its cells, where `answer` has them, and None where its rows are to be
    /// read, and at the end.
    pub(super) fn next_cells<Cells>(
        &mut self,
        answer: impl FnOnce(&NextPart, &Self) -> Result<Option<Cells>>,
    ) -> Option<Result<Cells>> {
        if self.has_ended() || self.current.is_some() {
            return None;
        }
        let time = self.metrics.elapsed_compute().clone();
        let _timer = time.timer();
        let Some(part) = self.queue.next() else {
            self.left = 0;
            return None;
        };
        self.parts += 1;
        let cells = answer(&part, self).and_then(|cells| {
            if cells.is_none() {
                self.current = Some(self.begin(part)?);
            }
            Ok(cells)
        });
        if cells.is_err() {
            self.left = 0;
        }
        cells.transpose()
    }

    /// Whether there are no more parts, or reading one failed.
    pub(super) fn has_ended(&self) -> bool {
        self.left == 0
    }

    fn read_rows(&mut self) -> Option<Result<PackedRows>> {
        while self.left > 0 {
            let next = match &mut self.current {
                None if self.by_part => return None,
                None => {
                    let taken = self.queue.next()?;
                    match self.begin(taken) {
                        Ok(current) => {
                            self.current = Some(current);
                            self.parts += 1;
                        }
                        Err(error) => return Some(Err(error)),
                    }
                    continue;
                }
                Some(CurrentPart::Group(reader)) => reader.packed().map(|rows| rows.map_err(external)),
                Some(CurrentPart::Segments(position)) => position.next(&self.table_columns, self.batch_rows),
            };
            if next.is_some() {
                return next;
            }
            self.current = None;
        }
        None
    }

    fn begin(&self, taken: NextPart) -> Result<CurrentPart> {
        match taken {
            NextPart::Segments { segments, .. } => {
                Ok(CurrentPart::Segments(SegmentPosition { segments: segments.into(), batch: 0, row: 0 }))
            }
            NextPart::Group { file, number, counted, pruner } => {
                let choose = |blocks: &[RowBlock]| {
                    let keep = pruner.blocks(&file.groups[number], blocks)?;
                    self.queue.skip(blocks, &keep);
                    Some(keep)
                };
                let read = |bytes| self.queue.read(bytes, counted);
                let (columns, rows) = (&self.table_columns, self.batch_rows);
                let reader = GroupReader::open(&file, number, columns, &self.read, rows, choose, read);
                let reader = reader.map_err(external)?;
                if let Some(footer) = reader.footer() {
                    self.queue.keep_footer(footer);
                }
                Ok(CurrentPart::Group(reader))
            }
        }
    }
}

impl SegmentPosition {
    fn next(&mut self, table_columns: &[usize], batch_rows: usize) -> Option<Result<PackedRows>> {
        loop {
            let (segment, needed) = self.segments.front()?;
            let Some(batch) = segment.batches.get(self.batch) else {
                self.segments.pop_front();
                self.batch = 0;
                continue;
            };
            let needed = needed.as_ref().is_none_or(|needed| needed.get(self.batch) != Some(&false));
            if !needed || self.row >= batch.rows {
                self.batch += 1;
                self.row = 0;
                continue;
            }
            let (offset, rows) = (self.row, (batch.rows - self.row).min(batch_rows));
            self.row += rows;
            return Some(segment.packed(batch, offset, rows, table_columns).map_err(Into::into));
        }
    }
}

/// The rows of a scan as batches. Small batches are combined where they are of one part, so that a column with one value in all
/// rows of a part has one value in every batch.
pub(super) struct ScanBatches {
    scan: PartitionScan,
    schema: SchemaRef,
    together: BatchCoalescer,
    /// The number of the part whose rows are in `together`.
    part: usize,
    ended: bool,
}

impl ScanBatches {
    /// Batches of the rows of `scan`, whose output columns are those of `schema`.
    pub(super) fn new(scan: PartitionScan, schema: SchemaRef) -> Self {
        let together = BatchCoalescer::new(Arc::clone(&schema), scan.batch_rows)
            .with_biggest_coalesce_batch_size(Some(scan.batch_rows / 2));
        Self { scan, schema, together, part: 0, ended: false }
    }

    fn add(&mut self, rows: &PackedRows) -> Result<()> {
        if self.part != self.scan.parts {
            self.part = self.scan.parts;
            self.together.finish_buffered_batch()?;
        }
        Ok(self.together.push_batch(rows.record_batch(&self.schema)?)?)
    }
}

impl Iterator for ScanBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        for _ in 0..MAX_SILENT {
            if let Some(batch) = self.together.next_completed_batch() {
                return Some(Ok(batch));
            }
            if self.ended {
                return None;
            }
            let added = match self.scan.next_rows() {
                Some(Ok(rows)) if rows.rows == 0 => Ok(()),
                Some(rows) => rows.and_then(|rows| self.add(&rows)),
                None => {
                    self.ended = true;
                    self.together.finish_buffered_batch().map_err(Into::into)
                }
            };
            if let Err(error) = added {
                self.ended = true;
                return Some(Err(error));
            }
        }
        Some(Ok(RecordBatch::new_empty(Arc::clone(&self.schema))))
    }
}

/// An error of the store, within DataFusion.
pub(super) fn external(error: probe_common::error::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
