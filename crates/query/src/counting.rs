//! Counts what questions allocate. Operators say what they hold, and functions what they make (`made`); plans, the insides
//! of operators and copies on the way say nothing, and all of it is memory. So the allocator of a process that answers
//! questions counts for each question what the threads allocate and free while they work for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Bytes that a thread counts by itself before the account has them.
const BATCH: isize = 64 << 10;
/// The same for what the whole process has: a process has many threads, and most of them work for no question.
const PROCESS_BATCH: isize = 16 << 10;

/// What the process has allocated and not freed, in bytes.
static PROCESS: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator, which counts what questions allocate. A program whose questions are to keep to their memory
/// has it as its global allocator; in one that has not, only what is reserved counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

/// What was allocated and not freed for one question, in bytes.
#[derive(Debug, Default)]
pub(super) struct Account(AtomicIsize);

thread_local! {
    /// That of the question that this thread works for now.
    static CURRENT: Cell<*const Account> = const { Cell::new(ptr::null()) };
    /// What it does not have yet.
    static UNTOLD: Cell<isize> = const { Cell::new(0) };
    /// What this thread has allocated and freed, and [`PROCESS`] does not have yet.
    static UNTOLD_PROCESS: Cell<isize> = const { Cell::new(0) };
}

/// What the process has allocated and not freed, in bytes; None where that is not counted.
pub(super) fn process_bytes() -> Option<usize> {
    usize::try_from(PROCESS.load(Ordering::Relaxed)).ok().filter(|bytes| *bytes > 0)
}

impl Account {
    /// What is allocated now; threads that work for it may have a little more.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Does something that counts here.
    pub(super) fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        let _back = Back { account: CURRENT.replace(self), untold: UNTOLD.replace(0) };
        work()
    }
}

/// Goes back to what counted before.
struct Back {
    account: *const Account,
    untold: isize,
}

impl Drop for Back {
    fn drop(&mut self) {
        let account = CURRENT.replace(self.account);
        let untold = UNTOLD.replace(self.untold);
        // SAFETY: `with` borrows the account for as long as this is there.
        unsafe { &*account }.0.fetch_add(untold, Ordering::Relaxed);
    }
}

#[inline]
fn count(bytes: isize) {
    let untold = UNTOLD_PROCESS.get() + bytes;
    if untold.abs() < PROCESS_BATCH {
        UNTOLD_PROCESS.set(untold);
    } else {
        UNTOLD_PROCESS.set(0);
        PROCESS.fetch_add(untold, Ordering::Relaxed);
    }
    let account = CURRENT.get();
    if account.is_null() {
        return;
    }
    let untold = UNTOLD.get() + bytes;
    if untold.abs() < BATCH {
        UNTOLD.set(untold);
    } else {
        UNTOLD.set(0);
        // SAFETY: it is current only while `Account::with` borrows it.
        unsafe { &*account }.0.fetch_add(untold, Ordering::Relaxed);
    }
}

// SAFETY: all is done by the system's allocator; counting allocates nothing and does not unwind.
unsafe impl GlobalAlloc for CountingAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller says; all blocks are the system's.
        unsafe { System.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as the caller says; all blocks are the system's.
        unsafe { System.realloc(block, layout, size) }
    }
}
