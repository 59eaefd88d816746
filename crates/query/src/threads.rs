//! The threads that queries run on, of lower priority than those that take in rows, so that the heaviest query slows
//! nobody but other queries.
//!
//! One step of a query may be long: a sort of all that it has, a function of many long texts. Nothing else runs on that
//! thread meanwhile, so queries that run at the same time have threads of their own, among which the kernel divides the
//! processors.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use probe_common::error::{Error, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// On a scale from -20 to 19 where others have 0: under full load such a thread gets a third of what they get, which is
/// enough for an answer while a training on the same processors takes all it can.
const NICENESS: i32 = 5;

/// The stack of such a thread. The deepest statement that is let in (`text_complexity`) takes less than half of it in the
/// development build, whose frames are the largest: a test asks such statements. Memory is taken only of what is used.
pub(super) const STACK: usize = 64 << 20;

/// The fewest threads of a group, where there are as many cores: a query that begins while the one before still ends is in
/// another group.
const MIN_THREADS: usize = 4;

/// Groups of threads. The first has a thread for each core, the second half as many, the third a third: a single query has
/// the whole machine, and a hundred do not have a hundred times as many threads.
#[derive(Debug)]
pub(super) struct Threads {
    groups: Mutex<Vec<Runtime>>,
    /// There are no more groups than queries that run at a time.
    most: usize,
}

impl Threads {
    /// Starts those of one query, of `most` that run at a time.
    pub(super) fn start(most: usize) -> Result<Self> {
        Ok(Self { groups: Mutex::new(vec![group(0)?]), most })
    }

    /// Runs a task on those that have least to do, which are new ones where all have something and the system has threads
    /// left.
    ///
    /// # Errors
    /// The threads have ended.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let mut groups = self.groups();
        let tasks = |group: &Runtime| group.metrics().num_alive_tasks();
        let all_work = groups.iter().all(|group| tasks(group) > 0);
        if all_work
            && groups.len() < self.most
            && let Ok(another) = group(groups.len())
        {
            groups.push(another);
        }
        let idlest = groups.iter().min_by_key(|group| tasks(group));
        Ok(idlest.ok_or_else(|| Error::failed("the engine has ended"))?.spawn(task))
    }

    /// Tasks that are there: those of [`spawn`](Self::spawn), and what they began themselves.
    pub(super) fn tasks(&self) -> usize {
        self.groups().iter().map(|group| group.metrics().num_alive_tasks()).sum()
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Runtime>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // An engine is dropped where nothing may block, and what still runs has nobody who waits for it.
        for group in self.groups().drain(..) {
            group.shutdown_background();
        }
    }
}

/// The threads of the group that there are `before` others of.
fn group(before: usize) -> Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let group = Builder::new_multi_thread()
        .worker_threads((cores / (before + 1)).max(cores.min(MIN_THREADS)))
        .thread_stack_size(STACK)
        .thread_name("probe-query")
        .on_thread_start(lower_priority)
        .enable_time()
        .build()?;
    Ok(group)
}

/// Does something here and now that takes as much stack as the deepest statement.
pub(super) fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
        thread.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

/// Gives the calling thread the priority of a query.
pub fn lower_priority() {
    // SAFETY: setpriority takes three integers and touches no memory of ours. On Linux 0 is the calling thread. Where
    // it is refused queries have the priority that everyone has.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
    }
}
