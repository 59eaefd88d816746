//! File descriptors of the agent in a process whose program may close any number, and open files under the same one: a program
//! that becomes a daemon closes all of them.
//!
//! The background thread has a table of descriptors of its own ([`separate`]), so that neither it nor the program sees what the
//! other opens and closes. What training's threads need lies above the numbers that programs choose by hand ([`move_up`]), and
//! is used only while it still is the same file ([`KnownFile`]).

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

/// The lowest number of [`move_up`] descriptors.
const MIN_RAISED: c_int = 200;
/// The number of standard error.
const LAST_STREAM: RawFd = 2;

thread_local! {
    static IS_SEPARATE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread has a table of its own.
pub(crate) fn is_separate() -> bool {
    IS_SEPARATE.try_with(Cell::get).unwrap_or(false)
}

/// Notes that the calling thread was started by one that has a table of its own.
pub(crate) fn mark_separate() {
    IS_SEPARATE.set(true);
}

/// Gives the calling thread, and those that it starts from now on, a table of their own. Of the process's descriptors it keeps
/// `kept`; its standard streams lead nowhere, because a reader of the program's pipes sees EOF only when every writer has closed
/// them.
///
/// # Errors
/// The kernel refuses, and the thread goes on with the table of the process: before Linux 5.9, where a container's filter of
/// system calls forbids `unshare`.
pub(crate) fn separate(kept: Option<RawFd>) -> io::Result<()> {
    let kept = kept.filter(|kept| *kept > LAST_STREAM);
    let last = kept.unwrap_or(LAST_STREAM);
    if close_range(last + 1, RawFd::MAX, libc::CLOSE_RANGE_UNSHARE).is_err() {
        // SAFETY: changes the calling thread's table only.
        if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
            return Err(io::Error::last_os_error());
        }
        close_between(last + 1, RawFd::MAX)?;
    }
    IS_SEPARATE.set(true);
    if kept.is_some() {
        close_between(LAST_STREAM + 1, last - 1)?;
    }
    // SAFETY: a path that ends in a zero byte, and numbers of this thread's own table.
    unsafe {
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if nowhere < 0 {
            return Err(io::Error::last_os_error());
        }
        for stream in 0..=LAST_STREAM {
            libc::dup2(nowhere, stream);
        }
        if nowhere > LAST_STREAM {
            libc::close(nowhere);
        }
    }
    Ok(())
}

fn close_range(first: RawFd, last: RawFd, flags: c_uint) -> io::Result<()> {
    // SAFETY: numbers only. A file that is closed here is in the thread's own table, of which nothing has a descriptor yet.
    match unsafe { libc::syscall(libc::SYS_close_range, first as c_uint, last as c_uint, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes descriptors of the calling thread's own table, also where the kernel has no call for a range.
fn close_between(first: RawFd, last: RawFd) -> io::Result<()> {
    if first > last || close_range(first, last, 0).is_ok() {
        return Ok(());
    }
    for descriptor in listed()?.into_iter().filter(|number| (first..=last).contains(number)) {
        // SAFETY: as above. The directory's own is closed already, which is an error without an effect.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

/// The numbers in the calling thread's table, with the one of the directory that lists them.
fn listed() -> io::Result<Vec<RawFd>> {
    let names = std::fs::read_dir("/proc/thread-self/fd")?.flatten();
    Ok(names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// What is open in the calling thread's table above the standard streams.
pub(crate) fn open_numbers() -> Vec<RawFd> {
    let is_open = |number: &RawFd| *number > LAST_STREAM && file_id(*number).is_some();
    listed().unwrap_or_default().into_iter().filter(is_open).collect()
}

/// Opens sockets under these numbers in the calling thread's own table, each two of them connected. tokio has a pair for signals,
/// made once in the life of a process, that each of its runtimes copies; in a new table the numbers would be other files.
pub(crate) fn open_sockets(numbers: &[RawFd]) {
    for pair in numbers.chunks(2) {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: two numbers of ours that the call fills; numbers of this thread's own table, in which nothing else is open.
        unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) != 0 {
                return;
            }
            let ends = ends.map(move_up);
            for (end, number) in ends.into_iter().zip(pair) {
                libc::dup3(end, *number, libc::O_CLOEXEC);
            }
            for end in ends.into_iter().filter(|end| !pair.contains(end)) {
                libc::close(end);
            }
        }
    }
}

/// Moves a descriptor of ours to a number that programs do not choose by hand. It stays where it is if there are no such numbers.
pub(crate) fn move_up(low: RawFd) -> RawFd {
    // SAFETY: a descriptor that the caller has just opened and hands over.
    unsafe {
        let high = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, MIN_RAISED);
        if high < 0 {
            return low;
        }
        libc::close(low);
        high
    }
}

/// [`move_up`], for descriptors of the agent's Python half.
#[pyfunction]
fn raise_descriptor(low: RawFd) -> RawFd {
    move_up(low)
}

/// Adds this file's functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(raise_descriptor, module)?)
}

/// Device and number of a file.
type FileId = (u64, u64);

/// What the descriptor means in the calling thread's table; None where it is not open.
fn file_id(descriptor: RawFd) -> Option<FileId> {
    // SAFETY: all zeros is a valid stat, which the call fills where it returns 0.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let known = libc::fstat(descriptor, &raw mut stat) == 0;
        known.then_some((stat.st_dev, stat.st_ino))
    }
}

/// Which file a descriptor of ours is, so that it is recognized later. None at first.
pub(crate) struct KnownFile {
    device: AtomicU64,
    inode: AtomicU64,
}

impl KnownFile {
    pub(crate) const fn new() -> Self {
        Self { device: AtomicU64::new(0), inode: AtomicU64::new(0) }
    }

    /// Takes the file that the descriptor is now.
    pub(crate) fn set(&self, descriptor: RawFd) {
        let (device, inode) = file_id(descriptor).unwrap_or_default();
        self.device.store(device, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
    }

    /// Whether the descriptor is this file in the calling thread's table: a program may have closed all files, and then it can be
    /// any file. May be called between fork and exec.
    pub(crate) fn is(&self, descriptor: RawFd) -> bool {
        let known = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        file_id(descriptor) == Some(known)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, pipe};
    use std::os::fd::{AsRawFd, IntoRawFd};

    use super::*;

    #[test]
    fn a_thread_of_its_own_table_sees_nothing_of_the_process_and_keeps_nothing_open() {
        let (mut reader, writer) = pipe().expect("a pipe");
        let kept = File::open("/proc/self/cmdline").expect("a file");
        let number = move_up(kept.into_raw_fd());
        assert!(number >= MIN_RAISED);
        let (other, id) = (writer.as_raw_fd(), file_id(number));
        let (separated, is_separated) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            separate(Some(number)).expect("a table of its own");
            let open: Vec<RawFd> = (0..4096).filter(|number| file_id(*number).is_some()).collect();
            assert_eq!((open, file_id(number), is_separate()), (vec![0, 1, 2, number], id, true));
            separated.send(()).expect("the test waits");
            goes_on.recv().expect("the test says so");
            assert_eq!(file_id(number), id, "the process has closed its own");
        });
        is_separated.recv().expect("it is");
        assert!(!is_separate() && file_id(other).is_some());
        // The other end is gone when the process closes it, although the thread lives.
        drop(writer);
        assert_eq!(reader.read(&mut [0]).expect("the end"), 0);
        // SAFETY: opened above.
        unsafe { libc::close(number) };
        go_on.send(()).expect("it waits");
        thread.join().expect("all of it held");
    }
}
