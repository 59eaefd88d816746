//! Processor time of the calling thread, and how long it waited for a processor, read once a step.
//!
//! The file with the waiting time stays open for the thread that ends the training steps: opening it costs five times as much as
//! reading it. A program may close files that it did not open, and open others under the same numbers, so the file is read only
//! while it is the same one, and used only where it agrees with the thread's clock.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::descriptors::{KnownFile, move_up};

/// The thread (upper half) and its open file (lower half). 0: none yet.
static OPEN: AtomicI64 = AtomicI64::new(0);
static FILE: KnownFile = KnownFile::new();
/// Value of [`OPEN`] after which the file is not tried again: there is no such file, or it was closed.
const NEVER: i64 = -1;
/// The kernel adds up what a thread has run at every tick and at every switch: at least once a second.
const LATE_NS: u64 = 2_000_000_000;

/// Nanoseconds that the thread has run, and was ready without a processor (`u64::MAX`: not known).
pub(super) fn used() -> Option<(u64, u64)> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec of ours, which the call fills where it returns 0.
    if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } != 0 {
        return None;
    }
    let running = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    Some((running, waited(running).unwrap_or(u64::MAX)))
}

fn waited(running: u64) -> Option<u64> {
    let open = OPEN.load(Ordering::Relaxed);
    if open == NEVER {
        return None;
    }
    // SAFETY: gettid has no arguments and always succeeds.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    let file = match open {
        0 => open_for(thread),
        open if open >> 32 == thread => open as i32,
        // Another thread ended the steps before.
        _ => return None,
    };
    let mut text = [0_u8; 80];
    // SAFETY: the buffer is ours and as long as is said.
    let length = if FILE.is(file) { unsafe { libc::pread(file, text.as_mut_ptr().cast(), text.len(), 0) } } else { -1 };
    let waited = usize::try_from(length).ok().and_then(|length| parse(text.get(..length)?, running));
    if waited.is_none() {
        OPEN.store(NEVER, Ordering::Relaxed);
    }
    waited
}

/// The waiting time in the file of a thread that has run for `running`. None where it is not such a file, or the kernel counts
/// nothing.
fn parse(text: &[u8], running: u64) -> Option<u64> {
    let mut numbers =
        std::str::from_utf8(text).ok()?.strip_suffix('\n')?.split(' ').map(|number| number.parse::<u64>().ok());
    let (ran, waited, times) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let agrees = ran.abs_diff(running) < LATE_NS && times > 0;
    (agrees && numbers.next().is_none()).then_some(waited)
}

#[cold]
fn open_for(thread: i64) -> libc::c_int {
    // SAFETY: a path that ends in a zero byte.
    let low = unsafe { libc::open(c"/proc/thread-self/schedstat".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    let file = if low < 0 { -1 } else { move_up(low) };
    FILE.set(file);
    OPEN.store(if file < 0 { NEVER } else { thread << 32 | i64::from(file) }, Ordering::Relaxed);
    file
}

/// Forgets in a forked child the file, which is that of the parent's thread. It is not closed, because by now its descriptor may
/// be a file of the program.
pub(super) fn begin_anew() {
    OPEN.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_such_a_file_says_is_believed() {
        assert_eq!(parse(b"4000000 250 12\n", 5_000_000), Some(250));
        for (text, running) in [
            ("4000000 250 12\n", 200_000_000_000),
            ("200000000000 250 12\n", 5_000_000),
            ("0 0 0\n", 5),
            ("4000000 250\n", 5_000_000),
            ("4000000 250 12 9\n", 5_000_000),
            ("4000000 250 12", 5_000_000),
            ("epoch 3\n", 5_000_000),
        ] {
            assert_eq!(parse(text.as_bytes(), running), None, "{text:?}");
        }
    }

    #[test]
    fn a_thread_that_works_has_run() {
        let before = used().unwrap();
        let mut sum = 0_u64;
        let after = loop {
            (0..100_000_u64).for_each(|number| sum = std::hint::black_box(sum.wrapping_add(number)));
            let now = used().unwrap();
            if now.0 - before.0 > 5_000_000 {
                break now;
            }
        };
        assert!(before.1 == u64::MAX || after.1 >= before.1);
    }
}
