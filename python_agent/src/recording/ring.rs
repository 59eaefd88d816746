//! A ring for each thread: the thread writes records, the background thread reads them, and neither waits for the other.
//!
//! What does not fit is lost as a whole interval: a slot is always kept for the end of one that has begun, so that a reader never
//! sees half of an interval. Losses are counted, and the next record says that there were some.

use std::cell::Cell;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::shared_memory::{self, RingRegion};
use probe_trace::record::{RecordTable, RingRecord};
use probe_trace::recover::RingPosition;
/// Records a ring holds: 2 MiB.
pub(crate) use probe_trace::shared_layout::CAPACITY;
use probe_trace::shared_layout::{HEAD_AT, PAGE, THREAD_AT};

/// Slots that intervals of modules and nodes leave free for the records that the times of steps are made of.
const KEPT: u64 = 256;

const IN_USE: u32 = 0;
const FINISHED: u32 = 1;
const FREE: u32 = 2;

/// Records that had no room, by the table that misses them.
#[derive(Debug)]
pub(crate) struct LostRecords([AtomicU64; RecordTable::ALL.len()]);

impl LostRecords {
    /// The counter of a table.
    pub(crate) fn counter(&self, table: RecordTable) -> &AtomicU64 {
        &self.0[table as usize]
    }
}

/// Forgets all rings in a forked child: they are the parent's.
pub(super) fn begin_anew() {
    RINGS.store(std::ptr::null_mut(), Ordering::Release);
    HOLD.store(false, Ordering::Relaxed);
}

/// Losses of all threads since the agent began.
pub(crate) static LOST: LostRecords = LostRecords([const { AtomicU64::new(0) }; RecordTable::ALL.len()]);

/// The records of one thread. Only that thread uses the `Cell`s. Where rings are shared, this struct too is in shared memory, in
/// front of its records: the collector, which reads it when the process is gone, uses `head` and `thread` only.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Ring {
    head: AtomicU64,
    thread: AtomicU64,
    /// Positions below this have been seen to be free, with memory for them.
    limit: Cell<u64>,
    /// Intervals that have begun on this thread and not ended: a slot is kept for each.
    open: Cell<u64>,
    lost: Cell<u64>,
    records: *mut RingRecord,
    state: AtomicU32,
    next: *mut Ring,
    /// Torch's number of the thread; 0: not known.
    torch_thread: AtomicU64,
    /// Its number among the rings in shared memory; None where it is ordinary memory.
    shared: Option<u32>,
    /// Number of records for which there is memory.
    there: AtomicU64,
    tail: RingTail,
}

const _: () = assert!(offset_of!(Ring, head) == HEAD_AT && offset_of!(Ring, thread) == THREAD_AT);

/// The reader's side, on a cache line of its own: only the reader writes it.
#[derive(Debug)]
#[repr(C, align(128))]
struct RingTail {
    /// Positions below this may be written again.
    free: AtomicU64,
    /// Positions below this have been read.
    taken: AtomicU64,
}

/// Whether records that have been read stay until [`release`]: until the rows made of them are written down, the collector may
/// have to read them again.
static HOLD: AtomicBool = AtomicBool::new(false);

/// All rings ever made, newest first. The list only grows, so that the reader needs no lock.
static RINGS: AtomicPtr<Ring> = AtomicPtr::new(std::ptr::null_mut());

impl Ring {
    /// A ring for the calling thread: that of a finished thread, else a new one. None without memory.
    #[cold]
    pub(crate) fn acquire() -> Option<&'static Ring> {
        // SAFETY: gettid has no arguments and always succeeds.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
        for ring in all() {
            if ring.state.compare_exchange(FREE, IN_USE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                ring.open.set(0);
                ring.thread.store(thread, Ordering::Release);
                return Some(ring);
            }
        }
        let ring = match shared_memory::ring() {
            Some(region) => Ring::within(region, thread),
            None => Box::leak(Box::new(Ring::map(thread)?)),
        };
        let mut first = RINGS.load(Ordering::Acquire);
        loop {
            ring.next = first;
            match RINGS.compare_exchange_weak(first, ring, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(ring),
                Err(newer) => first = newer,
            }
        }
    }

    /// A new ring in ordinary memory. None without memory.
    fn map(thread: u64) -> Option<Ring> {
        // SAFETY: an anonymous private mapping of a fixed size; the result is checked. Unmapped with an [`UnlistedRing`] only.
        let records = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                CAPACITY * size_of::<RingRecord>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if records == libc::MAP_FAILED {
            return None;
        }
        // A forked child has no use for the records; where the kernel can't leave them out, it has a copy.
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(records, CAPACITY * size_of::<RingRecord>(), libc::MADV_WIPEONFORK) };
        Some(Ring::new(records.cast(), thread, None, CAPACITY as u64))
    }

    fn new(records: *mut RingRecord, thread: u64, shared: Option<u32>, there: u64) -> Ring {
        Ring {
            head: AtomicU64::new(0),
            thread: AtomicU64::new(thread),
            limit: Cell::new(there),
            open: Cell::new(0),
            lost: Cell::new(0),
            records,
            state: AtomicU32::new(IN_USE),
            next: std::ptr::null_mut(),
            torch_thread: AtomicU64::new(0),
            shared,
            there: AtomicU64::new(there),
            tail: RingTail { free: AtomicU64::new(0), taken: AtomicU64::new(0) },
        }
    }

    /// A new ring in shared memory, where it stays for good.
    fn within(region: RingRegion, thread: u64) -> &'static mut Ring {
        let ring = region.page.cast::<Ring>();
        // SAFETY: a page and CAPACITY records behind it, mapped for this ring alone and never unmapped.
        unsafe {
            ring.write(Ring::new(region.records.cast(), thread, Some(region.number), region.there));
            &mut *ring
        }
    }

    /// A ring that is never read, for measurements.
    pub(crate) fn unlisted() -> Option<UnlistedRing> {
        Ring::map(0).map(UnlistedRing)
    }

    /// Bytes of memory that it uses: what is allocated of a shared ring, and what has been written so far of another.
    fn used(&self) -> usize {
        if self.shared.is_some() {
            return PAGE as usize + self.there.load(Ordering::Relaxed) as usize * size_of::<RingRecord>();
        }
        (self.head.load(Ordering::Relaxed) as usize).min(CAPACITY) * size_of::<RingRecord>()
    }

    /// Begins an interval: writes `record` and keeps a slot for its end. Where there is no room, counts a loss and returns False:
    /// then [`Ring::end`] must not be called.
    #[inline(always)]
    pub(crate) fn begin(&self, table: RecordTable, record: RingRecord) -> bool {
        // Room for this record, its end, and the ends of all open intervals.
        let needed = self.open.get() + 2 + if table == RecordTable::TorchTrace { KEPT } else { 0 };
        if self.room(needed) {
            self.write(record);
            self.open.set(self.open.get() + 1);
            true
        } else {
            self.lose(table);
            false
        }
    }

    /// Ends an interval for which [`Ring::begin`] returned True.
    #[inline(always)]
    pub(crate) fn end(&self, record: RingRecord) {
        self.open.set(self.open.get().saturating_sub(1));
        self.write(record);
    }

    /// Writes a record that is no part of an interval. Returns whether there was room.
    #[inline(always)]
    pub(crate) fn instant(&self, record: RingRecord) -> bool {
        let fits = self.room(self.open.get() + 1);
        if fits {
            self.write(record)
        } else {
            self.lose(record.table())
        }
        fits
    }

    /// Writes a record that adds to an open interval. Where there is no room, the intervals that are open now get no rows, and
    /// are counted when they are analysed.
    pub(crate) fn write_required(&self, record: RingRecord) {
        let table = record.table();
        let reserve = if table == RecordTable::TorchTrace { KEPT } else { 0 };
        if self.room(self.open.get() + 1 + reserve) {
            self.write(record);
        } else {
            self.lost.set(self.lost.get() | table.flag());
        }
    }

    /// Writes a record that adds to a row, if there is room to spare. Otherwise the row has NULL in those columns.
    pub(crate) fn write_optional(&self, record: RingRecord) {
        if self.room(self.open.get() + 1 + KEPT) {
            self.write(record);
        }
    }

    #[inline(always)]
    fn room(&self, needed: u64) -> bool {
        self.limit.get() - self.head.load(Ordering::Relaxed) >= needed || self.look_for_room(needed)
    }

    /// Reads how far the reader is, and allocates memory that the head reaches for the first time.
    #[inline(never)]
    fn look_for_room(&self, needed: u64) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        let mut there = self.there.load(Ordering::Relaxed);
        if let Some(number) = self.shared {
            while there < CAPACITY as u64 && head + needed > there {
                let more = shared_memory::take_more(number, there);
                if more == there {
                    break;
                }
                there = more;
                self.there.store(there, Ordering::Relaxed);
            }
        }
        let with_memory = if there < CAPACITY as u64 { there } else { u64::MAX };
        self.limit.set(with_memory.min(self.tail.free.load(Ordering::Acquire) + CAPACITY as u64));
        self.limit.get() - head >= needed
    }

    #[inline(always)]
    fn write(&self, record: RingRecord) {
        let head = self.head.load(Ordering::Relaxed);
        let lost = self.lost.get();
        let record = if lost == 0 { record } else { record.flagged(lost) };
        // SAFETY: `records` has CAPACITY slots; `room` saw this one free (the reader is past it) and with memory, or
        // `begin` kept it, and only this thread writes.
        unsafe { self.records.add(head as usize % CAPACITY).write(record) };
        self.lost.set(0);
        self.head.store(head + 1, Ordering::Release);
    }

    #[cold]
    fn lose(&self, table: RecordTable) {
        LOST.counter(table).fetch_add(1, Ordering::Relaxed);
        self.lost.set(self.lost.get() | table.flag());
    }

    /// Sets torch's number of the thread, as [`super::libtorch::current_thread`] returns it.
    pub(crate) fn set_torch_thread(&self, number: u64) {
        self.torch_thread.store(number, Ordering::Relaxed);
    }

    /// Marks the thread as over. Its last records are still to be read.
    pub(crate) fn finish(&self) {
        self.state.store(FINISHED, Ordering::Release);
    }
}

// SAFETY: the `Cell`s and the writing side are used by the ring's own thread alone; the reader uses `head`, `tail`,
// `state` and `thread` (atomics) and the slots between tail and head, which the writer leaves alone.
unsafe impl Sync for Ring {}

/// A ring that one function owns, unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct UnlistedRing(Ring);

impl std::ops::Deref for UnlistedRing {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.0
    }
}

impl Drop for UnlistedRing {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, which nothing else refers to.
        unsafe { libc::munmap(self.0.records.cast(), CAPACITY * size_of::<RingRecord>()) };
    }
}

/// Sets whether records that are read from now on stay until [`release`]. For the one thread that drains.
pub(crate) fn set_holding(on: bool) {
    HOLD.store(on, Ordering::Relaxed);
    release();
}

/// Lets the writers reuse everything that has been read.
pub(crate) fn release() {
    for ring in all() {
        ring.tail.free.store(ring.tail.taken.load(Ordering::Relaxed), Ordering::Release);
    }
}

/// Whether a ring is so full that it should be read soon.
pub(crate) fn is_filling() -> bool {
    let filled = |ring: &Ring| ring.head.load(Ordering::Relaxed) - ring.tail.free.load(Ordering::Relaxed);
    all().any(|ring| filled(ring) > CAPACITY as u64 / 4)
}

/// Bytes that all rings use.
pub(crate) fn used() -> usize {
    all().map(Ring::used).sum()
}

/// The reading side of a ring, for the one thread that drains.
#[derive(Clone, Copy)]
pub(crate) struct RingReader(&'static Ring);

impl RingReader {
    /// All rings, oldest first: the index of a ring never changes.
    pub(crate) fn all() -> Vec<RingReader> {
        let mut readers: Vec<RingReader> = all().map(RingReader).collect();
        readers.reverse();
        readers
    }

    /// Operating-system id of the thread that writes here.
    pub(crate) fn thread(&self) -> i64 {
        self.0.thread.load(Ordering::Acquire) as i64
    }

    /// Torch's number of that thread; 0: not known.
    pub(crate) fn torch_thread(&self) -> u64 {
        self.0.torch_thread.load(Ordering::Relaxed)
    }

    /// The positions that wait to be read, from the tail to the head.
    pub(crate) fn waiting(&self) -> std::ops::Range<u64> {
        self.0.tail.taken.load(Ordering::Relaxed)..self.0.head.load(Ordering::Acquire)
    }

    /// The record at a waiting position.
    #[inline]
    pub(crate) fn get(&self, position: u64) -> RingRecord {
        // SAFETY: positions below `head` are written (its load acquires), and not written again before `advance`.
        unsafe { self.0.records.add(position as usize % CAPACITY).read() }
    }

    /// Its number in shared memory, and how far it has been read.
    pub(crate) fn position(&self) -> RingPosition {
        let taken = self.0.tail.taken.load(Ordering::Relaxed);
        RingPosition { ring: self.0.shared.map(u64::from), taken, thread: self.thread() }
    }

    /// Marks everything below `position` as read.
    pub(crate) fn advance(&self, position: u64) {
        self.0.tail.taken.store(position, Ordering::Relaxed);
        if !HOLD.load(Ordering::Relaxed) {
            self.0.tail.free.store(position, Ordering::Release);
        }
    }

    /// Whether the thread is over and everything has been read.
    pub(crate) fn is_over(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == FINISHED && self.waiting().is_empty()
    }

    /// Lets another thread have the ring.
    pub(crate) fn recycle(&self) {
        self.0.torch_thread.store(0, Ordering::Relaxed);
        self.0.state.store(FREE, Ordering::Release);
    }
}

fn all() -> impl Iterator<Item = &'static Ring> {
    let mut next = RINGS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: rings are leaked, and `next` is set before a ring is published.
        let ring = unsafe { next.as_ref() }?;
        next = ring.next;
        Some(ring)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_trace::record::RecordKind;

    /// Writes `count` records, reads them, and sees that they are the ones.
    fn goes_through(ring: &'static Ring, count: u64) {
        let reader = RingReader(ring);
        for number in 0..count {
            assert!(ring.instant(RingRecord::new(RecordKind::MarkStep, 0, number, number, 0)), "record {number}");
            if number % 20_000 == 0 {
                reader.advance(reader.waiting().end);
            }
        }
        let waiting = reader.waiting();
        assert_eq!(reader.get(waiting.end - 1).a, count - 1);
        assert!(waiting.clone().is_sorted_by_key(|position| reader.get(position).ts));
        reader.advance(waiting.end);
    }

    #[test]
    fn a_ring_takes_memory_as_its_head_comes_there() {
        shared_memory::begin();
        let Some(ring) = Ring::acquire() else { panic!("no memory") };
        assert!(ring.shared.is_some());
        assert_eq!(ring.used(), 64 << 10);
        goes_through(ring, 1000);
        assert_eq!(ring.used(), 64 << 10);
        goes_through(ring, 2000);
        assert_eq!(ring.used(), 128 << 10);
        goes_through(ring, 3 * CAPACITY as u64);
        assert_eq!(ring.used(), PAGE as usize + CAPACITY * size_of::<RingRecord>());
    }

    #[test]
    fn a_ring_whose_memory_can_not_be_had_goes_on_in_ordinary_memory() {
        shared_memory::begin();
        let Some(ring) = Ring::acquire() else { panic!("no memory") };
        goes_through(ring, 1000);
        assert!(shared_memory::cover(ring.shared.expect("shared"), 64 << 10));
        ring.there.store(CAPACITY as u64, Ordering::Relaxed);
        goes_through(ring, 3 * CAPACITY as u64);
    }

    #[test]
    fn overflow_loses_whole_intervals_and_counts_them() {
        let Some(ring) = Ring::acquire() else { panic!("no memory") };
        let reader = RingReader(ring);
        let record = |kind| RingRecord::new(kind, 0, 1, 0, 0);
        let before = LOST.counter(RecordTable::TorchTrace).load(Ordering::Relaxed);
        let mut open = 0_u64;
        let mut refused = 0;
        for _ in 0..CAPACITY {
            if ring.begin(RecordTable::TorchTrace, record(RecordKind::Enter)) { open += 1 } else { refused += 1 }
        }
        assert_eq!(LOST.counter(RecordTable::TorchTrace).load(Ordering::Relaxed) - before, refused);
        // What the steps need still fits, and so does every end.
        assert!(ring.begin(RecordTable::Steps, record(RecordKind::OptimizerBegin)));
        ring.end(record(RecordKind::OptimizerEnd));
        for _ in 0..open {
            ring.end(record(RecordKind::Exit));
        }
        let waiting = reader.waiting();
        assert_eq!(waiting.end - waiting.start, 2 * open + 2);
        assert!(waiting.end - waiting.start <= CAPACITY as u64);
        let flagged = waiting.clone().filter(|position| reader.get(*position).lost_detail()).count();
        assert_eq!(flagged, 1, "the first record after the loss says so");
        reader.advance(waiting.end);
        assert!(ring.begin(RecordTable::TorchTrace, record(RecordKind::Enter)));
        ring.end(record(RecordKind::Exit));
        reader.advance(reader.waiting().end);
        ring.finish();
        assert!(reader.is_over());
        reader.recycle();
        let again = Ring::acquire();
        assert!(again.is_some_and(|again| std::ptr::eq(again, ring)));
    }
}
