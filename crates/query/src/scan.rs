//! One partition of a scan: takes parts from the queue and makes batches of the columns that are asked for.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::metrics::BaselineMetrics;
use probe_store::{GroupReader, Segment};

use super::queue::{Queue, Taken};
use super::running::Guard;

/// One partition being read.
pub(super) struct Scan {
    pub(super) queue: Arc<Queue>,
    /// The places in the table of the columns that come out.
    pub(super) places: Vec<usize>,
    /// Of what comes out.
    pub(super) projected: SchemaRef,
    pub(super) batch_rows: usize,
    /// Rows that may still be given.
    pub(super) left: usize,
    pub(super) metrics: BaselineMetrics,
    pub(super) current: Option<Current>,
    /// Counted as long as it is there.
    pub(super) _running: Guard,
}

/// What is being read.
pub(super) enum Current {
    Segments(Position),
    Group(GroupReader),
}

/// Where in segments, the first of which is being read.
pub(super) struct Position {
    /// With which of its batches may have rows for the query; None for all.
    segments: VecDeque<(Arc<Segment>, Option<Vec<bool>>)>,
    batch: usize,
    row: usize,
}

impl Scan {
    fn begin(&self, taken: Taken) -> Result<Current> {
        match taken {
            Taken::Segments(segments) => {
                Ok(Current::Segments(Position { segments: segments.into(), batch: 0, row: 0 }))
            }
            Taken::Group { file, number, counted } => {
                let read = |bytes| self.queue.read(bytes, counted);
                let reader = GroupReader::open(&file, number, &self.places, &self.projected, self.batch_rows, read);
                Ok(Current::Group(reader.map_err(external)?))
            }
        }
    }

    /// The next rows of what is being read; None at its end.
    fn batch(&mut self) -> Option<Result<RecordBatch>> {
        match self.current.as_mut()? {
            Current::Group(reader) => {
                let batch = reader.next()?.map_err(external);
                let left = self.left;
                Some(batch.map(|batch| if batch.num_rows() > left { batch.slice(0, left) } else { batch }))
            }
            Current::Segments(position) => loop {
                let (segment, needed) = position.segments.front()?;
                let Some(batch) = segment.batches.get(position.batch) else {
                    position.segments.pop_front();
                    position.batch = 0;
                    continue;
                };
                let needed = needed.as_ref().is_none_or(|needed| needed.get(position.batch) != Some(&false));
                if !needed || position.row >= batch.rows {
                    position.batch += 1;
                    position.row = 0;
                    continue;
                }
                let (offset, rows) = (position.row, (batch.rows - position.row).min(self.batch_rows).min(self.left));
                position.row += rows;
                let made = segment.record_batch(batch, offset, rows, &self.places, &self.projected);
                return Some(made.map_err(Into::into));
            },
        }
    }
}

impl Iterator for Scan {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let time = self.metrics.elapsed_compute().clone();
        let _timer = time.timer();
        while self.left > 0 {
            if self.current.is_none() {
                let taken = self.queue.next()?;
                match self.begin(taken) {
                    Ok(current) => self.current = Some(current),
                    Err(error) => return Some(Err(error)),
                }
            }
            match self.batch() {
                Some(Ok(batch)) => {
                    self.left -= batch.num_rows();
                    self.metrics.output_rows().add(batch.num_rows());
                    return Some(Ok(batch));
                }
                Some(Err(error)) => {
                    self.left = 0;
                    return Some(Err(error));
                }
                None => self.current = None,
            }
        }
        None
    }
}

fn external(error: probe_common::error::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
