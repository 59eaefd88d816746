//! The threads that queries run on, of lower priority than those that take in rows, so that the heaviest query slows
//! down other queries only.
//!
//! One step of a query may be long: a sort of all its rows, a function of many long texts. Nothing else runs on that
//! thread meanwhile, so queries that run at the same time have threads of their own, among which the kernel divides the
//! processors.

use std::cell::Cell;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use probe_common::error::{Error, Result};
use probe_common::priority::{lower_priority, set_niceness};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// Niceness of a thread whose query has been worked on for [`LONG_RUNNING`]: a query that has only begun gets three times as much time.
const LONG_NICENESS: i32 = 10;
/// The time within which a plain query is answered, also in the development build.
const LONG_RUNNING: Duration = Duration::from_millis(300);

/// The stack of such a thread. The deepest statement that is let in (`text_complexity`) takes less than half of it in the
/// development build, whose frames are the largest: a test runs such statements. Only pages that are used take memory.
pub(super) const STACK: usize = 64 << 20;

/// Bytes of a stack, below its end in use, that are not given back.
const MAX_KEPT_STACK: usize = 64 << 10;

/// The fewest threads of a group, where there are as many cores: a query that begins while the one before still ends is in
/// another group.
const MIN_THREADS: usize = 4;

/// Groups of threads. The first has a thread for each core, the second half as many, the third a third: a single query has
/// the whole machine, and a hundred do not have a hundred times as many threads.
#[derive(Debug)]
pub(super) struct QueryThreads {
    groups: Mutex<Vec<ThreadGroup>>,
    /// The most groups that there may be.
    most: usize,
}

#[derive(Debug)]
struct ThreadGroup {
    runtime: Runtime,
    /// Whether some of its threads have given way, which they can't take back.
    gave_way: Arc<AtomicBool>,
}

impl ThreadGroup {
    fn tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }
}

impl QueryThreads {
    /// Starts the threads of one query, of `most` that run at a time. There are up to twice as many groups, because the tasks of
    /// a query end a little after it.
    pub(super) fn start(most: usize) -> Result<Self> {
        Ok(Self { groups: Mutex::new(vec![group(0)?]), most: 2 * most })
    }

    /// Runs a task on the group that has least to do: a new one where all groups have tasks and the system has threads left.
    ///
    /// # Errors
    /// The threads have ended.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let mut groups = self.groups();
        for group in groups.extract_if(.., |group| group.gave_way.load(Ordering::Relaxed) && group.tasks() == 0) {
            group.runtime.shutdown_background();
        }
        let all_work = groups.iter().all(|group| group.tasks() > 0);
        if all_work
            && groups.len() < self.most
            && let Ok(another) = group(groups.len())
        {
            groups.push(another);
        }
        let idlest = groups
            .iter()
            .min_by_key(|group| (group.tasks() > 0, group.gave_way.load(Ordering::Relaxed), group.tasks()));
        Ok(idlest.ok_or_else(|| Error::failed("the engine has ended"))?.runtime.spawn(task))
    }

    /// Number of tasks that exist: those of [`spawn`](Self::spawn), and those that they began themselves.
    pub(super) fn tasks(&self) -> usize {
        self.groups().iter().map(ThreadGroup::tasks).sum()
    }

    fn groups(&self) -> MutexGuard<'_, Vec<ThreadGroup>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QueryThreads {
    fn drop(&mut self) {
        // An engine is dropped where nothing may block, and the result of what still runs is not needed.
        for group in self.groups().drain(..) {
            group.runtime.shutdown_background();
        }
    }
}

/// Starts the threads of a group that has `before` groups before it.
fn group(before: usize) -> Result<ThreadGroup> {
    let gave_way = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&gave_way);
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let runtime = Builder::new_multi_thread()
        .worker_threads((cores / (before + 1)).max(cores.min(MIN_THREADS)))
        .thread_stack_size(STACK)
        .thread_name("probe-query")
        // Steps are long, and tokio would look for a deadline that has passed, for a task that was told to end, and for one
        // that is new, after some sixty of them.
        .event_interval(1)
        .global_queue_interval(1)
        .on_thread_start(move || {
            lower_priority();
            note_stack();
            GIVES_WAY.set(Some(Arc::clone(&flag)));
        })
        .enable_time()
        .build()
        .map_err(Error::no_thread)?;
    Ok(ThreadGroup { runtime, gave_way })
}

thread_local! {
    /// The lowest address of a query thread's stack, and the address after its highest; zeros on other threads.
    static STACK_RANGE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// The flag that says that a query thread has given way; None once it has, and on other threads.
    static GIVES_WAY: Cell<Option<Arc<AtomicBool>>> = const { Cell::new(None) };
}

/// Lowers the priority of the calling thread, if it is a query thread and its query has been worked on for [`LONG_RUNNING`].
pub(super) fn give_way(worked: Duration) {
    if worked < LONG_RUNNING {
        return;
    }
    if let Some(gave_way) = GIVES_WAY.take() {
        set_niceness(LONG_NICENESS);
        gave_way.store(true, Ordering::Relaxed);
    }
}

/// Notes where the calling thread's stack is.
fn note_stack() {
    // SAFETY: the attributes are written by pthread_getattr_np before they are read, and destroyed after.
    unsafe {
        let mut attributes = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) == 0 {
            let (mut begin, mut size) = (std::ptr::null_mut(), 0_usize);
            if libc::pthread_attr_getstack(&raw const attributes, &raw mut begin, &raw mut size) == 0 {
                STACK_RANGE.set((begin as usize, begin as usize + size));
            }
            libc::pthread_attr_destroy(&raw mut attributes);
        }
    }
}

/// Gives back to the system the pages of this thread's stack that are not in use any more: planning is deep, and its pages would
/// stay.
pub(super) fn give_back_stack() {
    let here = 0_u8;
    let here = &raw const here as usize;
    let (begin, top) = STACK_RANGE.get();
    // Whole pages, whatever their size, and none that this function or a callee may use.
    let end = (here & !(MAX_KEPT_STACK - 1)).saturating_sub(MAX_KEPT_STACK);
    // DataFusion continues planning on another stack where this one would not suffice.
    if here >= top || end <= begin {
        return;
    }
    // SAFETY: the range is stack of the calling thread below everything that it has on it; later reads there give zeros, and
    // later writes stay.
    unsafe {
        libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DONTNEED);
    }
}

/// Runs `work`, which may take as much stack as the deepest statement, on a thread of its own, and waits for it.
pub(super) fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(Error::no_thread)?;
        thread.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn wait<T>(task: JoinHandle<T>) -> std::result::Result<T, tokio::task::JoinError> {
        Builder::new_current_thread().build().unwrap().block_on(task)
    }

    /// Gives threads long steps to do. Returns how many were done when a deadline was seen, and after how many tokio would look
    /// for it by its own settings.
    fn steps_before_a_deadline() -> (usize, usize) {
        let group = group(0).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let steps = group.runtime.metrics().num_workers() * 61;
        let late = group.runtime.spawn({
            let done = Arc::clone(&done);
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                done.load(Ordering::Relaxed)
            }
        });
        for _ in 0..2 * steps {
            let done = Arc::clone(&done);
            group.runtime.spawn(async move {
                std::thread::sleep(Duration::from_millis(2));
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let before = wait(late).unwrap();
        group.runtime.shutdown_background();
        (before, steps)
    }

    #[test]
    fn a_deadline_is_seen_between_long_steps() {
        // A thread that the system stops for a moment after the deadline sees it late, but not in every round.
        let mut late = Vec::new();
        let in_time = (0..5).any(|_| {
            let (before, steps) = steps_before_a_deadline();
            late.push(before);
            before < steps / 2
        });
        assert!(in_time, "so many steps came before, in each round: {late:?}");
    }

    #[test]
    fn a_question_that_is_worked_on_for_long_gives_way_and_its_threads_end_with_it() {
        let threads = QueryThreads::start(1).unwrap();
        let niceness = || {
            // SAFETY: getpriority reads a number.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        };
        let niceness_after = |worked| {
            let task = async move {
                give_way(worked);
                niceness()
            };
            wait(threads.spawn(task).unwrap()).unwrap()
        };
        let usual = niceness_after(Duration::ZERO);
        assert!(niceness_after(LONG_RUNNING) > usual);
        // A task ends a moment after its answer.
        while threads.tasks() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(niceness_after(Duration::ZERO), usual);
    }
}
