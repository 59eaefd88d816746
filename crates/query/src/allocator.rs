//! What glibc's malloc does with memory that queries have given back: by itself it keeps most of it for later ones, up to
//! several times what all queries together may take.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use super::counting::process_bytes;

/// Bytes of a block that goes back to the system as soon as it is free. By itself malloc raises this to 32 MiB with the
/// blocks that come and go, and keeps the smaller ones. A column of a batch is smaller: of 8192 numbers or views of text.
#[cfg(target_env = "gnu")]
const SEPARATE_BLOCK: i32 = 192 << 10;
/// Bytes that stay with malloc at the end of what it has.
#[cfg(target_env = "gnu")]
const MAX_SPARE: i32 = 2 << 20;
/// What has taken less leaves nothing that would be worth looking for.
const MIN_TAKEN: usize = 4 << 20;
/// The process is looked at no more often than this.
const LOOK_NS: u64 = 2_000_000;
/// Free pages are looked for again after so many times what that took.
const PAUSE: u64 = 20;

/// Says to malloc, once, what it is to keep.
pub(super) fn keep_little() {
    #[cfg(target_env = "gnu")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: mallopt sets two numbers of malloc's own, under malloc's lock.
        ONCE.call_once(|| unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, SEPARATE_BLOCK);
            libc::mallopt(libc::M_TRIM_THRESHOLD, MAX_SPARE);
        });
    }
}

/// Gives back to the system what a query that had `taken` bytes has left with malloc.
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

/// What the process takes beside what is allocated: free blocks among others that malloc can't give back, stacks, pages of
/// the program. While queries run it grows, and counts with what they have; what can be given back is, before that.
///
/// A look costs some microseconds, and free pages are found in a tenth of a millisecond. A process that has grown little
/// looks for none.
#[derive(Debug)]
pub(super) struct Overhead {
    /// What all queries together may take.
    budget: usize,
    /// What there was beside when there was no query yet.
    first: usize,
    /// And when none ran.
    rest: AtomicUsize,
    /// What has come to that since.
    more: AtomicUsize,
    began: Instant,
    /// Nanoseconds after that when it is looked at again.
    next: AtomicU64,
}

impl Overhead {
    /// Where all queries together may take `budget` bytes.
    pub(super) fn new(budget: usize) -> Self {
        let first = beside().unwrap_or(0);
        let (rest, more) = (AtomicUsize::new(first), AtomicUsize::new(0));
        Self { budget, first, rest, more, began: Instant::now(), next: AtomicU64::new(0) }
    }

    /// Notes that no query runs. What malloc can't give back of rows that come and go is nothing that queries did, but
    /// what they have left is.
    pub(super) fn at_rest(&self) {
        if let (Some(beside), Some(allocated)) = (beside(), process_bytes()) {
            self.rest.store(beside.min(self.first + allocated / 4), Ordering::Relaxed);
            self.more.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes that have come to it while queries ran, as was seen at the last look.
    pub(super) fn bytes(&self) -> usize {
        self.more.load(Ordering::Relaxed)
    }

    /// Looks, if it is time for that, where queries have `used` bytes.
    pub(super) fn look(&self, used: usize) {
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
        // What grows for another reason leaves queries half of what they may take.
        self.more.store(more().unwrap_or(before).min(self.budget / 2), Ordering::Relaxed);
        let ended = now();
        self.next.store(ended + LOOK_NS.max((ended - began) * PAUSE), Ordering::Relaxed);
    }
}

/// What the process takes beside what it has allocated; None where that is not counted.
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
