//! Counts the memory that queries allocate. Operators reserve what they hold, and functions what they make (`made`), but plans,
//! operator internals and intermediate copies reserve nothing. So the allocator of a process that answers queries counts for each
//! query what threads allocate and free while they work for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Bytes that a thread counts by itself before the account has them.
const BATCH: isize = 64 << 10;
/// Bytes that a thread counts by itself before [`PROCESS`] has them. Smaller than the limit for accounts, because a process has
/// many threads, most of which work for no query.
const PROCESS_BATCH: isize = 16 << 10;

/// Bytes that the process has allocated and not freed.
static PROCESS: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator, which counts the memory that queries allocate. It must be the global allocator of a program whose
/// queries are to keep to their memory; elsewhere only reserved memory counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

/// Bytes that were allocated and not freed for one query.
#[derive(Debug, Default)]
pub(super) struct MemoryAccount(AtomicIsize);

thread_local! {
    /// The account of the query that this thread works for now.
    static CURRENT: Cell<*const MemoryAccount> = const { Cell::new(ptr::null()) };
    /// Bytes that this thread has counted and [`CURRENT`] does not have yet.
    static UNCOUNTED: Cell<isize> = const { Cell::new(0) };
    /// Bytes that this thread has counted and [`PROCESS`] does not have yet.
    static UNCOUNTED_PROCESS: Cell<isize> = const { Cell::new(0) };
}

/// Bytes that the process has allocated and not freed; None where they are not counted.
pub(super) fn process_bytes() -> Option<usize> {
    usize::try_from(PROCESS.load(Ordering::Relaxed)).ok().filter(|bytes| *bytes > 0)
}

impl MemoryAccount {
    /// Bytes that are allocated now, except the last few of threads that work for the query.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Counts `bytes` that exist already, and were counted in another account.
    pub(super) fn take_over(&self, bytes: usize) {
        self.0.fetch_add(isize::try_from(bytes).unwrap_or(isize::MAX), Ordering::Relaxed);
    }

    /// Leaves `bytes` out that were counted here and are kept for other queries.
    pub(super) fn hand_over(&self, bytes: usize) {
        self.0.fetch_sub(isize::try_from(bytes).unwrap_or(isize::MAX), Ordering::Relaxed);
    }

    /// Runs `work`, whose memory counts in this account.
    pub(super) fn charge<T>(&self, work: impl FnOnce() -> T) -> T {
        let _back = AccountGuard { account: CURRENT.replace(self), uncounted: UNCOUNTED.replace(0) };
        work()
    }
}

/// Runs `work`, whose memory counts in no account.
pub(super) fn for_nobody<T>(work: impl FnOnce() -> T) -> T {
    let _back = NobodyGuard(CURRENT.replace(ptr::null()));
    work()
}

/// Restores the account that counted before.
struct NobodyGuard(*const MemoryAccount);

impl Drop for NobodyGuard {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Restores the account that counted before.
struct AccountGuard {
    account: *const MemoryAccount,
    uncounted: isize,
}

impl Drop for AccountGuard {
    fn drop(&mut self) {
        let account = CURRENT.replace(self.account);
        let uncounted = UNCOUNTED.replace(self.uncounted);
        // SAFETY: `with` borrows the account for as long as this guard exists.
        unsafe { &*account }.0.fetch_add(uncounted, Ordering::Relaxed);
    }
}

// An inlined function is compiled with the program, which the dev profile does not optimise: each allocation took 40 calls there.
#[cfg_attr(not(debug_assertions), inline)]
fn count(bytes: isize) {
    let uncounted = UNCOUNTED_PROCESS.get() + bytes;
    if uncounted.abs() < PROCESS_BATCH {
        UNCOUNTED_PROCESS.set(uncounted);
    } else {
        UNCOUNTED_PROCESS.set(0);
        PROCESS.fetch_add(uncounted, Ordering::Relaxed);
    }
    let account = CURRENT.get();
    if account.is_null() {
        return;
    }
    let uncounted = UNCOUNTED.get() + bytes;
    if uncounted.abs() < BATCH {
        UNCOUNTED.set(uncounted);
    } else {
        UNCOUNTED.set(0);
        // SAFETY: an account is current only while `Account::with` borrows it.
        unsafe { &*account }.0.fetch_add(uncounted, Ordering::Relaxed);
    }
}

// SAFETY: the system's allocator does all the work; counting allocates nothing and does not unwind.
unsafe impl GlobalAlloc for CountingAllocator {
    #[cfg_attr(not(debug_assertions), inline)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    #[cfg_attr(not(debug_assertions), inline)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[cfg_attr(not(debug_assertions), inline)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller says; all blocks are the system's.
        unsafe { System.dealloc(block, layout) }
    }

    #[cfg_attr(not(debug_assertions), inline)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as the caller says; all blocks are the system's.
        unsafe { System.realloc(block, layout, size) }
    }
}
