//! Limits the freed memory that glibc's malloc keeps: by itself it keeps most memory that queries have freed for later ones, up
//! to several times what all queries together may take.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use super::counting::process_bytes;

/// Bytes of a block that goes back to the system as soon as it is free. By itself malloc raises this to 32 MiB with the
/// blocks that come and go, and keeps the smaller ones. A column of a batch is smaller: of 8192 numbers or views of text. So are
/// the buffers of 256 KiB in which batches of agents arrive, thousands in a second: if each were mapped anew, a third of ingest
/// would be page faults.
#[cfg(target_env = "gnu")]
const SEPARATE_BLOCK: i32 = 320 << 10;
/// Free bytes that malloc keeps at the end of its heap.
#[cfg(target_env = "gnu")]
const MAX_SPARE: i32 = 2 << 20;
/// A query that took fewer bytes leaves too little free memory to look for.
const MIN_TAKEN: usize = 4 << 20;
/// The shortest time between two looks at the process.
const LOOK_NS: u64 = 2_000_000;
/// Free pages are looked for again after this many times the duration of the last search.
const PAUSE: u64 = 20;

/// Sets, once, how much free memory malloc keeps. Call it before threads are started: each takes an arena of malloc's then, and
/// what is free in one is of no use to threads of another. By itself malloc makes eight for each processor.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            let arenas = i32::try_from(processors).unwrap_or(i32::MAX);
            // SAFETY: mallopt sets numbers of malloc's own, under malloc's lock.
            unsafe {
                libc::mallopt(libc::M_MMAP_THRESHOLD, SEPARATE_BLOCK);
                libc::mallopt(libc::M_TRIM_THRESHOLD, MAX_SPARE);
                libc::mallopt(libc::M_ARENA_MAX, arenas);
            }
        });
    }
}

/// Returns free malloc pages to the system after a query that used `taken` bytes, if those are many.
pub(super) fn give_back(taken: usize) {
    if taken >= MIN_TAKEN {
        trim();
    }
}

fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim gives free pages back, under the locks of malloc's arenas, one at a time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory of the process beside what is allocated: free blocks between others that malloc can't give back, stacks, pages of
/// the program. Its growth while queries run counts with their memory, after the free pages have been given back.
///
/// A look costs some microseconds, and a search for free pages a tenth of a millisecond. A process that has grown little is
/// not searched.
#[derive(Debug)]
pub(super) struct ProcessOverhead {
    /// Bytes that all queries together may take.
    budget: usize,
    /// Bytes beside the allocated ones before the first query.
    first: usize,
    /// Bytes beside the allocated ones when no query ran last.
    rest: AtomicUsize,
    /// Growth of those bytes since.
    more: AtomicUsize,
    began: Instant,
    /// Nanoseconds after `began` of the next look.
    next: AtomicU64,
}

impl ProcessOverhead {
    /// The overhead of a process whose queries together may take `budget` bytes.
    pub(super) fn new(budget: usize) -> Self {
        let first = beside().unwrap_or(0);
        let (rest, more) = (AtomicUsize::new(first), AtomicUsize::new(0));
        Self { budget, first, rest, more, began: Instant::now(), next: AtomicU64::new(0) }
    }

    /// Notes that no query runs. Free memory that malloc can't give back because rows come and go is not caused by queries; free
    /// memory beyond that of the start and a quarter of the allocated bytes is.
    pub(super) fn at_rest(&self) {
        if let (Some(beside), Some(allocated)) = (beside(), process_bytes()) {
            self.rest.store(beside.min(self.first + allocated / 4), Ordering::Relaxed);
            self.more.store(0, Ordering::Relaxed);
        }
    }

    /// Growth in bytes while queries ran, at the last look.
    pub(super) fn bytes(&self) -> usize {
        self.more.load(Ordering::Relaxed)
    }

    /// Looks at the process, if it is time for that. Queries have `used` bytes.
    pub(super) fn compare_with_process(&self, used: usize) {
        let now = || u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (began, next) = (now(), self.next.load(Ordering::Relaxed));
        let mine = |until| self.next.compare_exchange(next, until, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if began < next || !mine(began + LOOK_NS) {
            return;
        }
        let more = || beside().map(|beside| beside.saturating_sub(self.rest.load(Ordering::Relaxed)));
        let Some(before) = more() else { return };
        if used + before <= self.budget / 4 * 3 {
            return self.more.store(before, Ordering::Relaxed);
        }
        trim();
        // Growth for other reasons leaves queries half of what they may take.
        self.more.store(more().unwrap_or(before).min(self.budget / 2), Ordering::Relaxed);
        let ended = now();
        self.next.store(ended + LOOK_NS.max((ended - began) * PAUSE), Ordering::Relaxed);
    }
}

/// Bytes that the process takes beside its allocated ones; None where these are not counted.
fn beside() -> Option<usize> {
    let allocated = process_bytes()?;
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let resident = text.split_whitespace().nth(1)?.parse::<usize>().ok()?;
    Some((resident * page()).saturating_sub(allocated))
}

fn page() -> usize {
    // SAFETY: sysconf reads a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
