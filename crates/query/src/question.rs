//! Work for one question, on whatever thread: what it allocates counts for the question, and it ends with it.
//!
//! Operators begin tasks of their own, which nobody asks whether they may go on: a task that is told to end is only told
//! when it comes to a point where it waits. So each of them looks, whenever it is polled, whether the question is over.

use std::any::Any;
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::memory::Share;
use super::threads::{give_back_stack, give_way};

thread_local! {
    /// What this thread works for now.
    static CURRENT: RefCell<Option<Arc<Share>>> = const { RefCell::new(None) };
}

/// A task of a question. What it has is freed before it lets go of the question.
pub(super) struct Work<F> {
    inner: Option<Pin<Box<F>>>,
    of: Arc<Share>,
    /// Whether it goes on when the question is over: who waits for it has to be told.
    tells: bool,
}

/// Does what `inner` does, for the question `of`, to its end.
pub(super) fn tell<F: Future>(of: &Arc<Share>, inner: F) -> Work<F> {
    Work { inner: Some(Box::pin(inner)), of: Arc::clone(of), tells: true }
}

/// Does something for a question here and now.
pub(super) fn within<T>(of: &Arc<Share>, work: impl FnOnce() -> T) -> T {
    let _back = Back(CURRENT.replace(Some(Arc::clone(of))));
    of.account.with(work)
}

/// Has every task that operators begin work for the question of the one that began it.
pub(super) fn follow_tasks() {
    // There is one for all engines of a process.
    let _ = set_join_set_tracer(&Tasks);
}

struct Back(Option<Arc<Share>>);

impl Drop for Back {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl<F: Future> Future for Work<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let work = &mut *self;
        if !work.tells && work.of.is_over() {
            // Whoever waits for it has ended, or is about to, and drops it.
            return Poll::Pending;
        }
        let Some(inner) = &mut work.inner else { return Poll::Pending };
        let began = Instant::now();
        let polled = within(&work.of, || inner.as_mut().poll(context));
        give_way(work.of.worked(began.elapsed()));
        work.of.settle();
        polled
    }
}

impl<F> Drop for Work<F> {
    fn drop(&mut self) {
        let inner = self.inner.take();
        within(&self.of, || drop(inner));
        give_back_stack();
    }
}

#[derive(Debug)]
struct Tasks;

impl JoinSetTracer for Tasks {
    fn trace_future(&self, task: BoxFuture<'static, Box<dyn Any + Send>>) -> BoxFuture<'static, Box<dyn Any + Send>> {
        match CURRENT.with_borrow(Clone::clone) {
            Some(of) => Work { inner: Some(Box::pin(task)), of, tells: false }.boxed(),
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
