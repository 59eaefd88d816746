//! The channel of an answer, from the threads that compute it to its client.
//!
//! The limits of an answer are checked where it is computed, whether or not its client reads anything: past a limit the query is
//! dropped, with the batches that were ready. While a client reads nothing, its query gives its slot to others.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use probe_common::error::{Error, Result};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinHandle};

use super::admission::QueryPermit;
use super::bounds::QueryBounds;
use super::errors::within;
use super::memory::QueryMemory;
use super::query_task;

/// Batches that may be ready before the client takes them.
const MAX_READY_BATCHES: usize = 4;
/// KiB that the ready batches may have together; a single batch may have more.
const AHEAD_KIB: u32 = 512;
/// The time after which a client that takes nothing counts as stalled.
const STALLED: Duration = Duration::from_millis(100);

/// A batch that is ready, its share of `AHEAD_KIB`, and its share of the memory of queries.
type ReadyBatch = (RecordBatch, OwnedSemaphorePermit, MemoryReservation);
type ReadyBatches = Mutex<Receiver<ReadyBatch>>;

/// The end of the channel into which a query puts its batches.
pub(super) struct AnswerOutput {
    sender: Sender<ReadyBatch>,
    queue: Weak<ReadyBatches>,
    ahead: Arc<Semaphore>,
    pub(super) bounds: QueryBounds,
    reservation: MemoryReservation,
    permit: Option<QueryPermit>,
    rows: u64,
    bytes: u64,
}

/// The end of the channel from which batches are taken, before the query has begun.
pub(super) struct WaitingAnswer {
    queue: Arc<ReadyBatches>,
    bounds: QueryBounds,
    share: Arc<QueryMemory>,
}

/// The batches of a running query. Dropping this ends the query.
pub(super) struct RunningAnswer {
    queue: Arc<ReadyBatches>,
    query: JoinHandle<Result<()>>,
    bounds: QueryBounds,
    share: Arc<QueryMemory>,
    /// The batch that was taken last: the client works with it until it takes the next one, and then it is freed here, where that
    /// counts.
    taken: Option<(RecordBatch, MemoryReservation)>,
    _end: EndOnDrop,
}

/// Ends a query when it is dropped.
#[derive(Debug)]
pub(super) struct EndOnDrop {
    task: AbortHandle,
    bounds: QueryBounds,
}

impl EndOnDrop {
    /// Ends `task`, the task of a query with these bounds.
    pub(super) fn new(task: AbortHandle, bounds: &QueryBounds) -> Self {
        Self { task, bounds: bounds.clone() }
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.bounds.gone.cancel();
        self.task.abort();
    }
}

/// Both ends of the channel of an answer. Batches that are ready and not taken count in `share`.
pub(super) fn channel(bounds: &QueryBounds, share: &Arc<QueryMemory>) -> (WaitingAnswer, AnswerOutput) {
    let memory: Arc<dyn MemoryPool> = Arc::clone(share) as _;
    let (sender, receiver) = mpsc::channel(MAX_READY_BATCHES);
    let queue = Arc::new(Mutex::new(receiver));
    let output = AnswerOutput {
        sender,
        queue: Arc::downgrade(&queue),
        ahead: Arc::new(Semaphore::new(AHEAD_KIB as usize)),
        bounds: bounds.clone(),
        reservation: MemoryConsumer::new("answer").register(&memory),
        permit: None,
        rows: 0,
        bytes: 0,
    };
    (WaitingAnswer { queue, bounds: bounds.clone(), share: Arc::clone(share) }, output)
}

impl AnswerOutput {
    /// Runs `work`, which puts batches here, until it is done, a limit is reached, or the answer has been dropped.
    pub(super) async fn make(
        mut self,
        permit: QueryPermit,
        work: impl AsyncFnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.permit = Some(permit);
        let (sender, bounds, queue) = (self.sender.clone(), self.bounds.clone(), Weak::clone(&self.queue));
        let result = {
            let work = pin!(async { work(&mut self).await });
            tokio::select! {
                biased;
                error = bounds.ended() => Err(error),
                () = sender.closed() => Ok(()),
                result = work => result,
            }
        };
        if result.is_err()
            && let Some(queue) = queue.upgrade()
        {
            // The batches that are ready are no answer, and the client may never take them.
            let mut queue = lock(&queue);
            while queue.try_recv().is_ok() {}
        }
        result
    }

    /// Puts all `batches` into the channel, within the answer's limits.
    pub(super) async fn send_all(&mut self, mut batches: SendableRecordBatchStream) -> Result<()> {
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(|error| within(&error, &self.bounds))?;
            let size = batch.columns().iter().map(|column| bytes(column)).sum::<u64>();
            self.rows += batch.num_rows() as u64;
            self.bytes += size;
            self.bounds.check(self.rows, self.bytes)?;
            if !self.send(batch, size).await? {
                break;
            }
        }
        Ok(())
    }

    /// Puts one batch into the channel when there is room; false where the answer has been dropped.
    async fn send(&mut self, batch: RecordBatch, size: u64) -> Result<bool> {
        let reservation = self.reservation.new_empty();
        // The batch exists already, and the client frees memory when it takes it.
        reservation.grow(usize::try_from(size).unwrap_or(usize::MAX));
        let kibibytes = u32::try_from(size >> 10).unwrap_or(u32::MAX).clamp(1, AHEAD_KIB);
        let (sender, ahead) = (self.sender.clone(), Arc::clone(&self.ahead));
        let mut room = pin!(async {
            let ahead_permit = ahead.acquire_many_owned(kibibytes).await.ok()?;
            Some((sender.reserve().await.ok()?, ahead_permit))
        });
        let reserved = match tokio::time::timeout(STALLED, &mut room).await {
            Ok(reserved) => reserved,
            Err(_) => {
                let Some(stall) = self.permit.take().map(QueryPermit::stall) else { return Ok(false) };
                let reserved = tokio::select! {
                    reserved = room => reserved,
                    () = stall.ended() => return Err(self.bounds.limits.nobody_takes()),
                };
                self.permit = Some(stall.go_on().await?);
                reserved
            }
        };
        let Some((slot, ahead_permit)) = reserved else { return Ok(false) };
        slot.send((batch, ahead_permit, reservation));
        Ok(true)
    }
}

impl WaitingAnswer {
    /// The answer of `query`, which puts its batches into the other end.
    pub(super) fn answer_of(self, query: JoinHandle<Result<()>>) -> RunningAnswer {
        let end = EndOnDrop::new(query.abort_handle(), &self.bounds);
        RunningAnswer { queue: self.queue, query, bounds: self.bounds, share: self.share, taken: None, _end: end }
    }
}

impl RunningAnswer {
    /// The batches of the answer.
    pub(super) fn stream(self, schema: SchemaRef) -> SendableRecordBatchStream {
        let next = |mut answer: Self| async move {
            let batch = answer.next().await.map_err(|error| DataFusionError::External(Box::new(error)))?;
            Ok::<_, DataFusionError>(batch.map(|batch| (batch, answer)))
        };
        Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::try_unfold(self, next)))
    }

    /// The value of `wait`, or the error that ended the query: also where the query has not checked its deadline for long.
    pub(super) async fn first<T>(&mut self, wait: impl Future<Output = Option<T>>) -> Result<T> {
        match self.bounds.until_ended(wait).await? {
            Some(first) => Ok(first),
            None => Err(self.ended().await.err().unwrap_or_else(|| Error::failed("the query broke off"))),
        }
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        self.free_taken();
        let queue = Arc::clone(&self.queue);
        let next = std::future::poll_fn(|context| -> Poll<Option<ReadyBatch>> { lock(&queue).poll_recv(context) });
        match self.bounds.until_ended(next).await? {
            Some((batch, _ahead_permit, reservation)) => {
                self.taken = Some((batch.clone(), reservation));
                Ok(Some(batch))
            }
            None => self.ended().await.map(|()| None),
        }
    }

    fn free_taken(&mut self) {
        let taken = self.taken.take();
        query_task::within(&self.share, || drop(taken));
    }

    /// The result of the query: one that broke off must not look like one that came to its end.
    async fn ended(&mut self) -> Result<()> {
        (&mut self.query).await.unwrap_or_else(|error| Err(Error::failed("the query broke off").because(error)))
    }
}

impl Drop for RunningAnswer {
    fn drop(&mut self) {
        self.free_taken();
    }
}

fn lock(queue: &ReadyBatches) -> MutexGuard<'_, Receiver<ReadyBatch>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes(column: &dyn Array) -> u64 {
    // Where an array is only a part of larger buffers, the part counts.
    column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size()) as u64
}
