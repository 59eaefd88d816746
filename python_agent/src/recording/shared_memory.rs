//! Memory that outlives this process as long as the collector on this node has it open: a memory file without a name (memfd), so
//! that nothing is left behind, whichever process ends first. It holds the rings, and what [`analyser_checkpoint`](super::analyser_checkpoint) writes.
//!
//! Memory is allocated before anything is stored there: a store to a page that can't be allocated would raise SIGBUS. Where
//! allocation fails, a ring, or the rest of it, is ordinary memory. Most threads record little, so a ring's memory is allocated
//! in pieces, when its head first reaches them. A forked child does not inherit the memory.
//!
//! The background thread has a descriptor of the file under the same number in its own table. Where the program has closed the
//! process's, what training's threads need from then on is ordinary memory.

use std::fs::File;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::process_flag;
use crate::address::CollectorAddress;
use crate::descriptors::{KnownFile, move_up};
use crate::shared;
use probe_trace::record::RingRecord;
use probe_trace::shared_layout::{
    CAPACITY, CheckpointWriter, LOG_AT, LOG_BYTES, MARK_AT, MAX_RINGS, PAGE, RING_BYTES, RING_MARK, log_mark, ring_at,
};
use probe_trace::symbol_table::LearnedName;

/// The part of the file that holds a ring.
#[derive(Debug)]
pub(super) struct RingRegion {
    pub(super) number: u32,
    /// [`PAGE`] bytes, of which the last eight hold the mark.
    pub(super) page: *mut u8,
    /// Address space for [`CAPACITY`] records.
    pub(super) records: *mut RingRecord,
    /// Number of records for which memory is allocated.
    pub(super) there: u64,
}

/// Bytes of a ring that are allocated at once: the largest page of a kernel.
const PIECE: u64 = 64 << 10;
const RECORD: u64 = size_of::<RingRecord>() as u64;

/// The writer of the file; null where there is none. Never freed.
static FILE: AtomicPtr<Mutex<CheckpointWriter>> = AtomicPtr::new(std::ptr::null_mut());
/// Whether [`begin`] has tried to make the file.
static TRIED: AtomicBool = AtomicBool::new(false);
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// The file, to recognize its descriptor.
static KNOWN_FILE: KnownFile = KnownFile::new();
static RINGS: AtomicUsize = AtomicUsize::new(0);
/// The mappings that a forked child has to cover: the rings, then the log of names.
static MAPPED: [AtomicPtr<u8>; MAX_RINGS + 1] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_RINGS + 1];
/// Bytes of the log that are in use.
static LOGGED: AtomicUsize = AtomicUsize::new(0);

/// Makes the file. Called before the first ring is made; a second call does nothing.
pub(super) fn begin() {
    if TRIED.swap(true, Ordering::AcqRel) {
        return;
    }
    // A collector that is reached over TCP is taken to be on another node.
    let collector = std::env::var(probe_proto::env::PROBE_COLLECTOR).unwrap_or_default();
    if matches!(CollectorAddress::parse(&collector), Ok(CollectorAddress::Tcp(_))) {
        return;
    }
    // SAFETY: the name is a C string; the result is checked.
    let descriptor = unsafe { libc::memfd_create(c"probe-rings".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return not_shared(&std::io::Error::last_os_error());
    }
    let descriptor = move_up(descriptor);
    // SAFETY: the kernel has just returned the descriptor, and nothing else uses it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    match CheckpointWriter::begin(file) {
        Ok(writer) => {
            KNOWN_FILE.set(descriptor);
            DESCRIPTOR.store(descriptor, Ordering::Release);
            if let Err(error) = map(MAX_RINGS, LOG_AT, LOG_BYTES, LOG_BYTES) {
                not_shared(&error);
            }
            FILE.store(Box::into_raw(Box::new(Mutex::new(writer))), Ordering::Release);
        }
        Err(error) => not_shared(&error),
    }
}

/// Makes an own file in a forked child that has [left](leave_in_child) the parent's. The owner of the parent's file is leaked: its
/// descriptor is closed, and the number may be another file's by now.
pub(super) fn begin_anew() {
    FILE.store(std::ptr::null_mut(), Ordering::Release);
    MAPPED.iter().for_each(|page| page.store(std::ptr::null_mut(), Ordering::Release));
    RINGS.store(0, Ordering::Release);
    LOGGED.store(0, Ordering::Release);
    TRIED.store(false, Ordering::Release);
    begin();
}

/// The file's descriptor in the calling thread's table; None without a file, or if its number is another file's by now.
pub(crate) fn descriptor() -> Option<RawFd> {
    Some(DESCRIPTOR.load(Ordering::Acquire)).filter(|descriptor| KNOWN_FILE.is(*descriptor))
}

/// What writes names and state into the file; None where the calling thread does not have it open.
pub(super) fn writer() -> Option<&'static Mutex<CheckpointWriter>> {
    // SAFETY: null, or what `begin` made, which is never freed.
    let writer = unsafe { FILE.load(Ordering::Acquire).as_ref() };
    writer.filter(|_| descriptor().is_some())
}

fn not_shared(error: &std::io::Error) {
    *shared::lock(&shared::PROBLEM) = format!(
        "rings are not in shared memory ({error}): if this process is killed, its last tenth of a second is lost"
    );
}

fn closed() -> std::io::Error {
    std::io::Error::other("the program has closed their file")
}

/// A region for one more ring; None where the ring has to be ordinary memory.
#[cold]
pub(super) fn ring() -> Option<RingRegion> {
    if FILE.load(Ordering::Acquire).is_null() {
        return None;
    }
    let number = RINGS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |made| (made < MAX_RINGS).then_some(made + 1));
    let made = number.map_err(|_| std::io::Error::other("there are too many threads")).and_then(|number| {
        let page = map(number, ring_at(number), RING_BYTES, PIECE)?;
        // SAFETY: within the mapping just made, at its beginning, which is allocated; aligned, and nothing else knows it yet.
        unsafe {
            page.add(MARK_AT).cast::<u64>().write(RING_MARK);
            let records = page.add(PAGE as usize).cast::<RingRecord>();
            Ok(RingRegion { number: number as u32, page, records, there: (PIECE - PAGE) / RECORD })
        }
    });
    match made {
        Ok(region) => Some(region),
        Err(error) => {
            not_shared(&error);
            None
        }
    }
}

/// Allocates more memory for ring `number`, which has memory for `there` records. Returns for how many it has memory then.
#[cold]
pub(super) fn take_more(number: u32, there: u64) -> u64 {
    let begin = PAGE + there * RECORD;
    let end = (begin + PIECE).min(RING_BYTES);
    let taken = match take(ring_at(number as usize) + begin, end - begin) {
        Ok(()) => end,
        Err(error) => {
            not_shared(&error);
            if cover(number, begin) { RING_BYTES } else { begin }
        }
    };
    (taken - PAGE) / RECORD
}

/// Maps ordinary memory over the rest of a ring, from byte `begin` on, where nothing has been stored yet. Returns whether that
/// worked.
pub(super) fn cover(number: u32, begin: u64) -> bool {
    let page = MAPPED[number as usize].load(Ordering::Acquire);
    let bytes = (RING_BYTES - begin) as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: within the ring's mapping, which this call may change: only the ring's thread stores there, and it has not yet.
    // A forked child does not inherit it, like the rest of the ring.
    unsafe {
        let rest = page.add(begin as usize).cast();
        libc::mmap(rest, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) != libc::MAP_FAILED
            && libc::madvise(rest, bytes, libc::MADV_DONTFORK) == 0
    }
}

/// Allocates memory for `bytes` of the file from offset `at` on.
fn take(offset: u64, bytes: u64) -> std::io::Result<()> {
    let descriptor = descriptor().ok_or_else(closed)?;
    // Beyond this limit the kernel would send SIGXFSZ.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours; the other call takes numbers, and its result is checked.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) == 0 && limit.rlim_cur < offset + bytes {
            return Err(std::io::Error::from_raw_os_error(libc::EFBIG));
        }
        if libc::fallocate(descriptor, 0, offset as libc::off_t, bytes as libc::off_t) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Maps `bytes` of the file from offset `at` on and allocates the first `taken` of them.
fn map(number: usize, offset: u64, bytes: u64, taken: u64) -> std::io::Result<*mut u8> {
    take(offset, taken)?;
    let descriptor = descriptor().ok_or_else(closed)?;
    // SAFETY: calls that take numbers, whose results are checked.
    let page = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            access,
            libc::MAP_SHARED,
            descriptor,
            offset as libc::off_t,
        );
        if page == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        if libc::madvise(page, bytes as usize, libc::MADV_DONTFORK) != 0 {
            let error = std::io::Error::last_os_error();
            libc::munmap(page, bytes as usize);
            return Err(error);
        }
        page.cast::<u8>()
    };
    MAPPED[number].store(page, Ordering::Release);
    Ok(page)
}

/// Appends a name to the log when it becomes known, because a record may need it before all names are written again. Takes no
/// lock, so that it can be called anywhere. A name that does not fit is written with all names.
#[cold]
pub(super) fn log(learned: &LearnedName<'_>) {
    let page = MAPPED[MAX_RINGS].load(Ordering::Acquire);
    if page.is_null() || process_flag::is_child() {
        return;
    }
    let mut entry = Vec::with_capacity(256);
    learned.put(&mut entry);
    let needed = 8 + entry.len().next_multiple_of(8);
    // The last word stays zero, which ends the log.
    let fits = |taken: usize| Some(taken + needed).filter(|end| *end + 8 <= LOG_BYTES as usize);
    let Ok(at) = LOGGED.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) else { return };
    // SAFETY: within the log, at an offset that is this call's alone and a multiple of eight. The mark comes last: before it
    // there is no entry.
    unsafe {
        std::ptr::copy_nonoverlapping(entry.as_ptr(), page.add(at + 8), entry.len());
        AtomicU64::from_ptr(page.add(at).cast()).store(log_mark(&entry), Ordering::Release);
    }
}

const _: () = assert!(RING_BYTES as usize == PAGE as usize + CAPACITY * size_of::<RingRecord>());
const _: () = assert!(PIECE > PAGE && (PIECE - PAGE).is_multiple_of(RECORD));

/// Covers in a forked child the mappings that it has not inherited with memory of its own, because code of the agent may still
/// read there, and closes the file. Calls only what may be called between fork and exec.
///
/// A fork handler of another library may have run before and have mapped memory there: that stays as it is, and the agent's code
/// is then kept from the rings by nothing but its own checks for a forked child.
pub(super) fn leave_in_child() {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    for (number, page) in MAPPED.iter().enumerate() {
        let page = page.load(Ordering::Acquire);
        let bytes = if number < MAX_RINGS { RING_BYTES } else { LOG_BYTES };
        if !page.is_null() {
            // SAFETY: memory is mapped where nothing is. A kernel that does not know the flag (before 4.17) takes the
            // address as a hint, and what it mapped elsewhere is unmapped.
            unsafe {
                let mapped = libc::mmap(page.cast(), bytes as usize, access, flags, -1, 0);
                if mapped != libc::MAP_FAILED && mapped != page.cast() {
                    libc::munmap(mapped, bytes as usize);
                }
            }
        }
    }
    let descriptor = DESCRIPTOR.swap(-1, Ordering::AcqRel);
    if KNOWN_FILE.is(descriptor) {
        // SAFETY: the file that `begin` made. Its owner, `FILE`, does not write in a child.
        unsafe { libc::close(descriptor) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_number_that_means_another_file_is_left_alone() {
        begin();
        assert!(descriptor().is_some_and(|number| number >= 200) && writer().is_some());
        let other = File::open("/dev/null").expect("a file");
        assert!(!KNOWN_FILE.is(other.as_raw_fd()) && !KNOWN_FILE.is(1 << 20) && !KNOWN_FILE.is(-1));
    }
}
