//! Measures how long rows wait for their acknowledgement, without the waits for a processor on a busy machine.
//!
//! The kernel counts how long a thread that could run waited for a processor. Without that time of the threads that rows
//! pass, the rest is caused by the collector: a lock, a thread that does something else, memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::collector::support::{FakeAgent, hello};

/// The time between an acknowledgement and the next batch.
const PAUSE: Duration = Duration::from_millis(2);
/// Rows of a batch.
const ROWS: i64 = 10;

/// The waits of all batches that were sent.
#[derive(Debug, Default)]
pub(super) struct IngestWaits {
    pub(super) batches: u64,
    /// Batches that waited for too long, not counting the time in which there was no processor.
    pub(super) late: u64,
    /// The longest wait by the clock.
    pub(super) longest: Duration,
    /// The longest wait without the time in which there was no processor.
    pub(super) longest_with_processor: Duration,
}

/// Sends one batch after the other to a collector, each when the one before is acknowledged, from a thread of its own until it is
/// stopped. A batch that waits longer than `bound` is late.
pub(super) fn sends(
    collector: u32,
    socket: PathBuf,
    bound: Duration,
    over: Arc<AtomicBool>,
) -> JoinHandle<IngestWaits> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut agent = FakeAgent::connect(&socket, hello("waits")).await.unwrap();
            let threads = threads_of_rows(collector);
            let mut waits = IngestWaits::default();
            while !over.load(Ordering::Relaxed) {
                let first = waits.batches as i64 * ROWS;
                waits.batches += 1;
                let (without_processor, began) = (run_delay(&threads), Instant::now());
                agent.send_steps(waits.batches, first, ROWS).await;
                agent.acknowledged(waits.batches).await;
                let waited = began.elapsed();
                let with_processor = waited.saturating_sub(run_delay(&threads).saturating_sub(without_processor));
                waits.late += u64::from(with_processor > bound);
                waits.longest = waits.longest.max(waited);
                waits.longest_with_processor = waits.longest_with_processor.max(with_processor);
                tokio::time::sleep(PAUSE).await;
            }
            waits
        })
    })
}

/// The threads of the collector that rows and acknowledgements pass, and the calling thread.
fn threads_of_rows(collector: u32) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{collector}/task")).unwrap().map(|task| task.unwrap().path());
    let name = |task: &Path| fs::read_to_string(task.join("comm")).unwrap_or_default();
    let mut threads: Vec<PathBuf> =
        tasks.filter(|task| ["tokio-r", "probe-journal"].iter().any(|begin| name(task).starts_with(begin))).collect();
    assert!(threads.len() >= 2, "{threads:?}");
    threads.push(PathBuf::from("/proc/thread-self"));
    threads
}

/// How long these threads have waited for a processor, together.
fn run_delay(threads: &[PathBuf]) -> Duration {
    let of = |thread: &PathBuf| {
        let counts = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
        counts.split_whitespace().nth(1).and_then(|delay| delay.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(threads.iter().map(of).sum())
}
