//! The threads that queries run on: as many as there are cores, and of lower priority than those that take in rows, so
//! that the heaviest query slows nobody but other queries.

use std::future::Future;

use probe_common::error::Result;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// On a scale from -20 to 19 where others have 0: under full load such a thread gets a third of what they get, which is
/// enough for an answer while a training on the same processors takes all it can.
const NICENESS: i32 = 5;

/// The stack of such a thread. The deepest statement that is let in (`text_complexity`) takes less than half of it in the
/// development build, whose frames are the largest: a test asks such statements. Memory is taken only of what is used.
pub(super) const STACK: usize = 64 << 20;

/// Some threads.
#[derive(Debug)]
pub(super) struct Threads(Option<Runtime>);

impl Threads {
    /// Starts them.
    pub(super) fn start() -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores)
            .thread_stack_size(STACK)
            .thread_name("probe-query")
            .on_thread_start(lower_priority)
            .enable_time()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a task on them.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        self.0.as_ref().map(|runtime| runtime.spawn(task))
    }
}

impl Threads {
    /// Tasks that are there: those of [`spawn`](Self::spawn), and what they began themselves.
    pub(super) fn tasks(&self) -> usize {
        self.0.as_ref().map_or(0, |runtime| runtime.metrics().num_alive_tasks())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // An engine is dropped where nothing may block, and what still runs has nobody who waits for it.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Does something here and now that takes as much stack as the deepest statement.
pub(super) fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
        thread.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

fn lower_priority() {
    // SAFETY: setpriority takes three integers and touches no memory of ours. On Linux 0 is the calling thread. Where
    // it is refused queries have the priority that everyone has.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
    }
}
