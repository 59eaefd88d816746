//! An answer on its way from the threads that compute it to whoever asked.
//!
//! Its limits are watched where it is computed, whether or not its client takes anything: past one of them the query is
//! dropped there, with what it had ready. A client that takes nothing gives its place to others until it does.

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

use super::admission::Permit;
use super::bounds::Bounds;
use super::errors::within;
use super::memory::Share;
use super::question;

/// Batches that are ready before they are taken.
const AHEAD: usize = 4;
/// And their bytes, in KiB, where one has no more.
const AHEAD_KIB: u32 = 512;
/// A client that takes nothing for so long has stopped reading.
const STALLED: Duration = Duration::from_millis(100);

/// A batch that is ready, its place among those that are, and in the memory of queries.
type Ready = (RecordBatch, OwnedSemaphorePermit, MemoryReservation);
type Queue = Mutex<Receiver<Ready>>;

/// Where a query puts its batches.
pub(super) struct Output {
    sender: Sender<Ready>,
    queue: Weak<Queue>,
    ahead: Arc<Semaphore>,
    pub(super) bounds: Bounds,
    reservation: MemoryReservation,
    permit: Option<Permit>,
    rows: u64,
    bytes: u64,
}

/// What a query's batches are taken from; the query is still to be begun.
pub(super) struct Waiting {
    queue: Arc<Queue>,
    bounds: Bounds,
    share: Arc<Share>,
}

/// Batches of a query that runs. It ends with this.
pub(super) struct Answer {
    queue: Arc<Queue>,
    query: JoinHandle<Result<()>>,
    bounds: Bounds,
    share: Arc<Share>,
    /// The batch that was taken last: whoever has it works with it until the next is wanted, and then it is freed here, where
    /// that counts.
    taken: Option<(RecordBatch, MemoryReservation)>,
    _end: EndOnDrop,
}

/// Ends a query when it is dropped.
#[derive(Debug)]
pub(super) struct EndOnDrop {
    task: AbortHandle,
    bounds: Bounds,
}

impl EndOnDrop {
    /// `task` is that of a question with these bounds.
    pub(super) fn new(task: AbortHandle, bounds: &Bounds) -> Self {
        Self { task, bounds: bounds.clone() }
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.bounds.gone.cancel();
        self.task.abort();
    }
}

/// Both ends of an answer. What is ready and not taken counts in `share`.
pub(super) fn channel(bounds: &Bounds, share: &Arc<Share>) -> (Waiting, Output) {
    let memory: Arc<dyn MemoryPool> = Arc::clone(share) as _;
    let (sender, receiver) = mpsc::channel(AHEAD);
    let queue = Arc::new(Mutex::new(receiver));
    let output = Output {
        sender,
        queue: Arc::downgrade(&queue),
        ahead: Arc::new(Semaphore::new(AHEAD_KIB as usize)),
        bounds: bounds.clone(),
        reservation: MemoryConsumer::new("answer").register(&memory),
        permit: None,
        rows: 0,
        bytes: 0,
    };
    (Waiting { queue, bounds: bounds.clone(), share: Arc::clone(share) }, output)
}

impl Output {
    /// Does `work`, which puts batches here, until it is done, one of its limits is reached, or nobody waits any more.
    pub(super) async fn make(mut self, permit: Permit, work: impl AsyncFnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.permit = Some(permit);
        let (sender, bounds, queue) = (self.sender.clone(), self.bounds.clone(), Weak::clone(&self.queue));
        let result = {
            let work = pin!(async { work(&mut self).await });
            tokio::select! {
                biased;
                error = bounds.over() => Err(error),
                () = sender.closed() => Ok(()),
                result = work => result,
            }
        };
        if result.is_err()
            && let Some(queue) = queue.upgrade()
        {
            // What is there is no answer, and whoever was to take it may never come.
            let mut queue = lock(&queue);
            while queue.try_recv().is_ok() {}
        }
        result
    }

    /// Puts all that comes, within the answer's limits.
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

    /// Puts one, when there is room; false where nobody will take it.
    async fn send(&mut self, batch: RecordBatch, size: u64) -> Result<bool> {
        let reservation = self.reservation.new_empty();
        // It is there already, and whoever takes it makes room.
        reservation.grow(usize::try_from(size).unwrap_or(usize::MAX));
        let kibibytes = u32::try_from(size >> 10).unwrap_or(u32::MAX).clamp(1, AHEAD_KIB);
        let (sender, ahead) = (self.sender.clone(), Arc::clone(&self.ahead));
        let mut room = pin!(async {
            let place = ahead.acquire_many_owned(kibibytes).await.ok()?;
            Some((sender.reserve().await.ok()?, place))
        });
        let found = match tokio::time::timeout(STALLED, &mut room).await {
            Ok(found) => found,
            Err(_) => {
                let Some(stall) = self.permit.take().map(Permit::stall) else { return Ok(false) };
                let found = tokio::select! {
                    found = room => found,
                    () = stall.ended() => return Err(self.bounds.limits.nobody_takes()),
                };
                self.permit = Some(stall.go_on().await?);
                found
            }
        };
        let Some((slot, place)) = found else { return Ok(false) };
        slot.send((batch, place, reservation));
        Ok(true)
    }
}

impl Waiting {
    /// The answer of `query`, which puts its batches at the other end.
    pub(super) fn of(self, query: JoinHandle<Result<()>>) -> Answer {
        let end = EndOnDrop::new(query.abort_handle(), &self.bounds);
        Answer { queue: self.queue, query, bounds: self.bounds, share: self.share, taken: None, _end: end }
    }
}

impl Answer {
    /// Its batches.
    pub(super) fn stream(self, schema: SchemaRef) -> SendableRecordBatchStream {
        let next = |mut answer: Self| async move {
            let batch = answer.next().await.map_err(|error| DataFusionError::External(Box::new(error)))?;
            Ok::<_, DataFusionError>(batch.map(|batch| (batch, answer)))
        };
        Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::try_unfold(self, next)))
    }

    /// What `wait` gives, or why there is none: also where the query has not looked at its clock for long.
    pub(super) async fn first<T>(&mut self, wait: impl Future<Output = Option<T>>) -> Result<T> {
        match self.bounds.hold(wait).await? {
            Some(first) => Ok(first),
            None => Err(self.ended().await.err().unwrap_or_else(|| Error::failed("the query broke off"))),
        }
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        self.free_taken();
        let queue = Arc::clone(&self.queue);
        let next = std::future::poll_fn(|context| -> Poll<Option<Ready>> { lock(&queue).poll_recv(context) });
        match self.bounds.hold(next).await? {
            Some((batch, _place, reservation)) => {
                self.taken = Some((batch.clone(), reservation));
                Ok(Some(batch))
            }
            None => self.ended().await.map(|()| None),
        }
    }

    fn free_taken(&mut self) {
        let taken = self.taken.take();
        question::within(&self.share, || drop(taken));
    }

    /// How it ended: one that broke off must not look like one that came to its end.
    async fn ended(&mut self) -> Result<()> {
        (&mut self.query).await.unwrap_or_else(|error| Err(Error::failed("the query broke off").because(error)))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.free_taken();
    }
}

fn lock(queue: &Queue) -> MutexGuard<'_, Receiver<Ready>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes(column: &dyn Array) -> u64 {
    // Where an array is only a part of larger buffers, the part counts.
    column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size()) as u64
}
