//! Memory that outlives this process as long as the collector on this node has it open: a file of memory without a name
//! (memfd), so that nothing is left behind whoever dies first. Rings lie in it, and what [`keep`](super::keep) puts down.
//!
//! Memory is taken before anything is stored there: a store to a page that can't be had would be SIGBUS. Where it can't be
//! had, a ring, or the rest of it, is ordinary memory. Most threads record little, so a ring's memory is taken in pieces, as
//! its head first comes there. A forked child gets none of it.

use std::fs::File;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::process_flag;
use crate::address::Address;
use crate::shared;
use probe_trace::known::Learned;
use probe_trace::mapping::{
    CAPACITY, LOG_AT, LOG_BYTES, MARK_AT, MAX_RINGS, PAGE, RING_BYTES, RING_MARK, Writer, log_mark, ring_at,
};
use probe_trace::record::Record;

/// A place for a ring.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) number: u32,
    /// [`PAGE`] bytes, of which the last eight are taken.
    pub(super) page: *mut u8,
    /// Room for [`CAPACITY`] of them.
    pub(super) records: *mut Record,
    /// For so many there is memory.
    pub(super) there: u64,
}

/// Bytes of a ring that are taken at once: a kernel's largest page.
const PIECE: u64 = 64 << 10;
const RECORD: u64 = size_of::<Record>() as u64;

/// Null where there is none. Never let go of.
static FILE: AtomicPtr<Mutex<Writer>> = AtomicPtr::new(std::ptr::null_mut());
/// Whether there was to be one.
static TRIED: AtomicBool = AtomicBool::new(false);
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
static RINGS: AtomicUsize = AtomicUsize::new(0);
/// What a forked child has to cover: rings, and behind them the log of names.
static MAPPED: [AtomicPtr<u8>; MAX_RINGS + 1] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_RINGS + 1];
/// Bytes of the log that are taken.
static LOGGED: AtomicUsize = AtomicUsize::new(0);

/// Makes the file. Before the first ring; again does nothing.
pub(super) fn begin() {
    if TRIED.swap(true, Ordering::AcqRel) {
        return;
    }
    // A collector that is reached over TCP is on another node, as far as anybody knows.
    let collector = std::env::var(probe_proto::env::PROBE_COLLECTOR).unwrap_or_default();
    if matches!(Address::parse(&collector), Ok(Address::Tcp(_))) {
        return;
    }
    // SAFETY: the name is a C string; the result is checked.
    let descriptor = unsafe { libc::memfd_create(c"probe-rings".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return not_shared(&std::io::Error::last_os_error());
    }
    // SAFETY: the kernel gave it to us just now, and nobody else has it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    match Writer::begin(file) {
        Ok(writer) => {
            DESCRIPTOR.store(descriptor, Ordering::Release);
            if let Err(error) = map(MAX_RINGS, LOG_AT, LOG_BYTES, LOG_BYTES) {
                not_shared(&error);
            }
            FILE.store(Box::into_raw(Box::new(Mutex::new(writer))), Ordering::Release);
        }
        Err(error) => not_shared(&error),
    }
}

/// In a forked child that has [left](leave) the parent's file: makes one of its own. What owned the parent's is leaked: its
/// descriptor is closed, and its number may be another file's by now.
pub(super) fn begin_anew() {
    FILE.store(std::ptr::null_mut(), Ordering::Release);
    MAPPED.iter().for_each(|page| page.store(std::ptr::null_mut(), Ordering::Release));
    RINGS.store(0, Ordering::Release);
    LOGGED.store(0, Ordering::Release);
    TRIED.store(false, Ordering::Release);
    begin();
}

/// The file's number in this process, for whoever is to open it.
pub(crate) fn descriptor() -> Option<u32> {
    u32::try_from(DESCRIPTOR.load(Ordering::Acquire)).ok()
}

/// What puts things down in it.
pub(super) fn writer() -> Option<&'static Mutex<Writer>> {
    // SAFETY: null, or what `begin` made and nobody lets go of.
    unsafe { FILE.load(Ordering::Acquire).as_ref() }
}

fn not_shared(error: &std::io::Error) {
    *shared::lock(&shared::PROBLEM) = format!(
        "rings are not in shared memory ({error}): if this process is killed, its last tenth of a second is lost"
    );
}

/// A place for one more ring; None where it has to be ordinary memory.
#[cold]
pub(super) fn ring() -> Option<Region> {
    writer()?;
    let number = RINGS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |made| (made < MAX_RINGS).then_some(made + 1));
    let made = number.map_err(|_| std::io::Error::other("there are too many threads")).and_then(|number| {
        let page = map(number, ring_at(number), RING_BYTES, PIECE)?;
        // SAFETY: within the mapping just made, at its beginning, which is there; aligned, and nobody else knows it yet.
        unsafe {
            page.add(MARK_AT).cast::<u64>().write(RING_MARK);
            let records = page.add(PAGE as usize).cast::<Record>();
            Ok(Region { number: number as u32, page, records, there: (PIECE - PAGE) / RECORD })
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

/// Takes memory for more of ring `number`, which has some for `there` records. For how many it has then.
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

/// Has ordinary memory in the place of a ring's rest, from byte `begin` on, where nothing has been stored yet.
pub(super) fn cover(number: u32, begin: u64) -> bool {
    let page = MAPPED[number as usize].load(Ordering::Acquire);
    let bytes = (RING_BYTES - begin) as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: within the ring's mapping, which is this call's to change: its thread alone stores there, and has not yet. As
    // with the rest of it, a forked child gets none.
    unsafe {
        let rest = page.add(begin as usize).cast();
        libc::mmap(rest, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) != libc::MAP_FAILED
            && libc::madvise(rest, bytes, libc::MADV_DONTFORK) == 0
    }
}

/// Takes memory for bytes of the file.
fn take(at: u64, bytes: u64) -> std::io::Result<()> {
    let descriptor: RawFd = DESCRIPTOR.load(Ordering::Acquire);
    // The kernel would send SIGXFSZ.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours; the other call takes numbers, and its result is checked.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) == 0 && limit.rlim_cur < at + bytes {
            return Err(std::io::Error::from_raw_os_error(libc::EFBIG));
        }
        if libc::fallocate(descriptor, 0, at as libc::off_t, bytes as libc::off_t) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Maps bytes of the file, of which the first `taken` are there.
fn map(number: usize, at: u64, bytes: u64, taken: u64) -> std::io::Result<*mut u8> {
    take(at, taken)?;
    let descriptor: RawFd = DESCRIPTOR.load(Ordering::Acquire);
    // SAFETY: calls that take numbers, whose results are checked.
    let page = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let page =
            libc::mmap(std::ptr::null_mut(), bytes as usize, access, libc::MAP_SHARED, descriptor, at as libc::off_t);
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

/// Writes a name down as it is learned. It may be asked for by a record that comes before names are put down again. Takes
/// no lock: names are learned anywhere. What has no room waits for that.
#[cold]
pub(super) fn log(learned: &Learned<'_>) {
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
    // SAFETY: within the log, at a place that is this call's alone; a multiple of eight. The mark comes last: before it there
    // is no entry.
    unsafe {
        std::ptr::copy_nonoverlapping(entry.as_ptr(), page.add(at + 8), entry.len());
        AtomicU64::from_ptr(page.add(at).cast()).store(log_mark(&entry), Ordering::Release);
    }
}

const _: () = assert!(RING_BYTES as usize == PAGE as usize + CAPACITY * size_of::<Record>());
const _: () = assert!(PIECE > PAGE && (PIECE - PAGE).is_multiple_of(RECORD));

/// In a forked child: what was not given to it is covered with memory of its own, because some code of ours may still look
/// there, and the file is closed. Calls only what may be called between fork and exec.
///
/// Another library's handler may have run before and have taken memory that lies there now: that is left as it is, and
/// what keeps our code away from rings in a child is then all there is.
pub(super) fn leave() {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    for (number, page) in MAPPED.iter().enumerate() {
        let page = page.load(Ordering::Acquire);
        let bytes = if number < MAX_RINGS { RING_BYTES } else { LOG_BYTES };
        if !page.is_null() {
            // SAFETY: memory is mapped where nothing is. A kernel that does not know the flag (before 4.17) takes the
            // address for a wish, and what it mapped elsewhere is given back.
            unsafe {
                let mapped = libc::mmap(page.cast(), bytes as usize, access, flags, -1, 0);
                if mapped != libc::MAP_FAILED && mapped != page.cast() {
                    libc::munmap(mapped, bytes as usize);
                }
            }
        }
    }
    let descriptor = DESCRIPTOR.swap(-1, Ordering::AcqRel);
    if descriptor >= 0 && is_ours(descriptor) {
        // SAFETY: the file that `begin` made. Who owns it in the parent does not write in a child.
        unsafe { libc::close(descriptor) };
    }
}

/// Whether the number still is our file: a program may have closed everything, and then it can be anything.
fn is_ours(descriptor: RawFd) -> bool {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0_u8; 10];
    let (mut number, mut count) = (descriptor, 0);
    while count == 0 || number > 0 {
        digits[count] = b'0' + (number % 10) as u8;
        (number, count) = (number / 10, count + 1);
    }
    for (place, digit) in digits[..count].iter().rev().enumerate() {
        path[14 + place] = *digit;
    }
    let mut target = [0_u8; 32];
    // SAFETY: a path that ends with a zero, and a buffer of ours of that size.
    let length = unsafe { libc::readlink(path.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
    usize::try_from(length).is_ok_and(|length| target[..length].starts_with(b"/memfd:probe-rings"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_number_that_means_another_file_is_left_alone() {
        // SAFETY: as in `begin`.
        let ours = unsafe { libc::memfd_create(c"probe-rings".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(is_ours(ours));
        let other = File::open("/dev/null").expect("a file");
        assert!(!is_ours(other.as_raw_fd()));
        assert!(!is_ours(1 << 20));
        // SAFETY: made above.
        unsafe { libc::close(ours) };
        assert!(!is_ours(ours));
    }
}
