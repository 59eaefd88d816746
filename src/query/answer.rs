//! An answer on its way from the threads that compute it to whoever asked: within its limits, and stopped when nobody
//! takes it any more.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use tokio::sync::mpsc::Receiver;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout_at};

use super::limits::Limits;
use crate::error::{Error, Result};

/// Batches that are ready before they are taken.
pub(super) const AHEAD: usize = 4;

/// What this answer may be.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    pub(super) limits: Arc<Limits>,
    pub(super) timeout: Option<Duration>,
    /// Whether the client said so.
    pub(super) asked_timeout: bool,
    /// When that is over.
    pub(super) deadline: Option<Instant>,
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

impl Bounds {
    /// The result of `work`, unless it comes too late.
    pub(super) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let (Some(deadline), Some(timeout)) = (self.deadline, self.timeout) else { return Ok(work.await) };
        timeout_at(deadline, work).await.map_err(|_| self.limits.too_late(timeout, self.asked_timeout))
    }
}

/// Ends a query when it is dropped.
#[derive(Debug)]
pub(super) struct EndOnDrop(pub(super) AbortHandle);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Answer {
    batches: Receiver<Result<RecordBatch>>,
    query: JoinHandle<()>,
    bounds: Bounds,
    rows: u64,
    bytes: u64,
    _end: EndOnDrop,
}

/// The batches that `query` sends, as a stream; the query ends when `end` is dropped with it.
pub(super) fn stream(
    schema: SchemaRef,
    batches: Receiver<Result<RecordBatch>>,
    query: JoinHandle<()>,
    bounds: Bounds,
    end: EndOnDrop,
) -> SendableRecordBatchStream {
    let answer = Answer { batches, query, bounds, rows: 0, bytes: 0, _end: end };
    let next = |mut answer: Answer| async move {
        let batch = answer.next().await.map_err(|error| DataFusionError::External(Box::new(error)))?;
        Ok::<_, DataFusionError>(batch.map(|batch| (batch, answer)))
    };
    Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::try_unfold(answer, next)))
}

impl Answer {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(batch) = self.bounds.in_time(self.batches.recv()).await? else {
            // A query that broke off must not look like one that came to its end.
            return match (&mut self.query).await {
                Ok(()) => Ok(None),
                Err(error) => Err(Error::failed(format!("the query broke off: {error}"))),
            };
        };
        let batch = batch?;
        self.rows += batch.num_rows() as u64;
        self.bytes += batch.columns().iter().map(|column| bytes(column)).sum::<u64>();
        if self.rows > self.bounds.rows {
            return Err(self.bounds.limits.too_many_rows(self.bounds.rows));
        }
        if self.bytes > self.bounds.bytes {
            return Err(self.bounds.limits.too_many_bytes(self.bounds.bytes));
        }
        Ok(Some(batch))
    }
}

fn bytes(column: &dyn Array) -> u64 {
    // Where an array is only a part of larger buffers, the part counts.
    column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size()) as u64
}
