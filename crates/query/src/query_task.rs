//! Work for one query, on any thread: memory that the work allocates counts for the query, and the work ends with the query.
//!
//! Operators begin tasks of their own, which DataFusion stops only at points where they wait. So each task checks, whenever it
//! is polled, whether its query is over.

use std::any::Any;
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use datafusion::common::DataFusionError;
use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use futures::FutureExt;
use futures::future::BoxFuture;
use probe_common::error::Result;

pub(super) use super::counting::for_nobody;
use super::memory::QueryMemory;
use super::threads::{give_back_stack, give_way};

thread_local! {
    /// The query that this thread works for now.
    static CURRENT: RefCell<Option<Arc<QueryMemory>>> = const { RefCell::new(None) };
}

/// A task of a query. Its memory is freed before it drops the query's share.
pub(super) struct QueryTask<F> {
    inner: Option<Pin<Box<F>>>,
    of: Arc<QueryMemory>,
    /// Whether the task goes on when the query is over, because its result is needed.
    tells: bool,
}

/// Runs `inner` for the query `of`, to its end also where the query is over.
pub(super) fn run_to_end<F: Future>(of: &Arc<QueryMemory>, inner: F) -> QueryTask<F> {
    QueryTask { inner: Some(Box::pin(inner)), of: Arc::clone(of), tells: true }
}

/// Runs `work` for the query `of` on the calling thread.
pub(super) fn within<T>(of: &Arc<QueryMemory>, work: impl FnOnce() -> T) -> T {
    let _back = AccountGuard(CURRENT.replace(Some(Arc::clone(of))));
    of.account.charge(work)
}

/// Takes `bytes` for the stacks that a statement needs, from the query that the calling thread works for.
///
/// # Errors
/// The query may not have that much.
pub(super) fn take_stack(bytes: usize) -> Result<()> {
    CURRENT.with_borrow(|of| of.as_ref().map_or(Ok(()), |of| of.take_stack(bytes)))
}

/// Whether the query that the calling thread works for may go on, with what it has allocated.
///
/// # Errors
/// Why it is over.
pub(super) fn check() -> datafusion::common::Result<()> {
    let over = CURRENT.with_borrow(|of| {
        let of = of.as_ref()?;
        of.end_if_exceeded();
        of.end_reason()
    });
    over.map_or(Ok(()), |error| Err(DataFusionError::External(Box::new(error))))
}

/// Takes `bytes` that were allocated for the query that the calling thread works for, and outlive it, out of its account.
pub(super) fn hand_over(bytes: usize) {
    CURRENT.with_borrow(|of| of.iter().for_each(|of| of.account.hand_over(bytes)));
}

/// Makes every task that an operator begins work for the query of the task that began it.
pub(super) fn follow_tasks() {
    // There is one tracer for all engines of a process: an error says that it is set already.
    let _ = set_join_set_tracer(&QueryTaskTracer);
}

struct AccountGuard(Option<Arc<QueryMemory>>);

impl Drop for AccountGuard {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl<F: Future> Future for QueryTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let work = &mut *self;
        if !work.tells && work.of.end_reason().is_some() {
            // The task that waits for this one has ended, or is about to, and drops it.
            return Poll::Pending;
        }
        let Some(inner) = &mut work.inner else { return Poll::Pending };
        let began = Instant::now();
        let polled = within(&work.of, || inner.as_mut().poll(context));
        give_way(work.of.worked(began.elapsed()));
        if work.of.deep.load(Ordering::Relaxed) {
            give_back_stack();
        }
        work.of.end_if_exceeded();
        polled
    }
}

impl<F> Drop for QueryTask<F> {
    fn drop(&mut self) {
        let inner = self.inner.take();
        within(&self.of, || drop(inner));
        give_back_stack();
    }
}

#[derive(Debug)]
struct QueryTaskTracer;

impl JoinSetTracer for QueryTaskTracer {
    fn trace_future(&self, task: BoxFuture<'static, Box<dyn Any + Send>>) -> BoxFuture<'static, Box<dyn Any + Send>> {
        match CURRENT.with_borrow(Clone::clone) {
            Some(of) => QueryTask { inner: Some(Box::pin(task)), of, tells: false }.boxed(),
            None => task,
        }
    }

    fn trace_block(
        &self,
        task: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>,
    ) -> Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> {
        match CURRENT.with_borrow(Clone::clone) {
            Some(of) => Box::new(move || within(&of, task)),
            None => task,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bounds::QueryBounds;
    use crate::limits::{QueryLimits, QuerySettings};
    use crate::memory::MemoryBudget;
    use datafusion::common::runtime::SpawnedTask;

    fn question(memory: usize) -> (Arc<QueryMemory>, QueryBounds) {
        let limits = Arc::new(QueryLimits { memory, running: 1, ..QueryLimits::default() });
        let bounds = QueryBounds::new(&limits, &QuerySettings::default());
        (Arc::new(MemoryBudget::new(&limits)).share(&bounds), bounds)
    }

    #[tokio::test]
    async fn what_a_question_allocates_counts_and_ends_it() {
        follow_tasks();
        let (share, bounds) = question(16 << 20);
        // In a task that an operator begins, too.
        let kept = run_to_end(&share, async { SpawnedTask::spawn(async { vec![1_u8; 4 << 20] }).await.unwrap() }).await;
        assert!((4 << 20..5 << 20).contains(&share.account.bytes()), "{}", share.account.bytes());
        assert!(bounds.passed().is_none());
        let more = run_to_end(&share, async { vec![1_u8; 16 << 20] }).await;
        assert!(bounds.passed().unwrap().to_string().contains("more memory"));
        assert!(bounds.ended().await.to_string().contains("more memory"));
        within(&share, || drop((kept, more)));
        assert!(share.account.bytes() < 64 << 10, "{}", share.account.bytes());
    }

    #[tokio::test]
    async fn a_task_of_a_question_that_is_over_does_nothing_more() {
        let (of, bounds) = question(16 << 20);
        let mut steps = 0;
        let task = std::future::poll_fn(|_| {
            steps += 1;
            Poll::<()>::Pending
        });
        let mut task = Box::pin(QueryTask { inner: Some(Box::pin(task)), of, tells: false });
        assert!(futures::poll!(&mut task).is_pending());
        bounds.gone.cancel();
        assert!(futures::poll!(&mut task).is_pending());
        drop(task);
        assert_eq!(steps, 1);
    }

    #[test]
    fn a_statement_of_many_operators_takes_memory_for_its_stack() {
        let (share, bounds) = question(16 << 20);
        let check = |operators| {
            within(&share, || crate::text_complexity::check(&format!("SELECT 1{}", "+1".repeat(operators))))
        };
        check(40).unwrap();
        assert!(!share.deep.load(Ordering::Relaxed));
        assert!(check(500).unwrap_err().to_string().contains("more memory"));
        check(200).unwrap();
        assert!(share.deep.load(Ordering::Relaxed) && bounds.passed().is_none());
    }
}
