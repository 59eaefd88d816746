//! Chooses the thread of a process to borrow: best is one that waits anyway, so that training does not stop.

use std::fs;

use super::machine;

/// A thread that could be borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ThreadCandidate {
    /// Lower is better.
    rank: u8,
    pub(super) id: i32,
}

/// Threads that can be borrowed, the best first.
pub(super) fn candidates(pid: i32) -> Vec<ThreadCandidate> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<_> = ids.filter_map(|id| Some(ThreadCandidate { rank: rank(&state(pid, id)?)?, id })).collect();
    found.sort_unstable();
    found
}

/// The content of /proc/…/syscall: `running`, or the number of the system call that a thread is in and its arguments.
fn state(pid: i32, id: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/task/{id}/syscall")).ok()
}

/// Waits that the kernel takes up again after a stop.
const WAITS: &[i64] = &[
    libc::SYS_read,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_wait4,
    libc::SYS_pselect6,
    libc::SYS_ppoll,
];
/// Waits that a stop ends with EINTR, which is allowed and for which not every program is prepared.
const WAITS_ONCE: &[i64] = &[
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
];
/// System calls in the middle of malloc.
const ALLOCATES: &[i64] =
    &[libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_brk, libc::SYS_mremap, libc::SYS_madvise];
/// System calls of a thread that waits for a child where nothing reaches it, or that is about to end.
const FORKS: &[i64] = &[libc::SYS_clone, libc::SYS_clone3, libc::SYS_exit, libc::SYS_exit_group];

/// How good a thread in this state is; None where it may hold what a function that it is made to call could want, or
/// where it can't be stopped.
fn rank(state: &str) -> Option<u8> {
    let Ok(number) = state.split_whitespace().next()?.parse::<i64>() else { return Some(3) };
    let is = |calls: &[i64]| calls.contains(&number);
    match number {
        // The thread waits for another one, and goes on waiting when it is detached.
        libc::SYS_futex => Some(0),
        // Threads in these calls go on waiting too.
        _ if is(WAITS) || is(machine::OLDER_WAITS) => Some(1),
        _ if is(ALLOCATES) || is(FORKS) || is(machine::OLDER_FORKS) => None,
        _ if is(WAITS_ONCE) || is(machine::OLDER_WAITS_ONCE) => Some(5),
        // The thread is neither in a call nor running: it was just stopped, or is in a fault.
        -1 => Some(4),
        // The call will return soon.
        _ => Some(2),
    }
}

/// Whether a thread that was stopped in system call `number` may call a function of the interpreter: not in the middle of
/// malloc, whose lock it may hold.
pub(super) fn may_call_from(number: i64) -> bool {
    rank(&number.to_string()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_comes_first_and_who_allocates_not_at_all() {
        let rank = |number: i64| rank(&format!("{number} 0x7f 0x0"));
        assert!(rank(libc::SYS_futex) < rank(libc::SYS_read) && rank(libc::SYS_read) < super::rank("running"));
        assert!(super::rank("running") < rank(libc::SYS_epoll_pwait));
        assert_eq!(rank(libc::SYS_brk), None);
        assert!(may_call_from(libc::SYS_futex) && !may_call_from(libc::SYS_mmap));
    }

    #[test]
    fn a_thread_of_this_process_can_be_found() {
        assert!(candidates(std::process::id() as i32).iter().any(|found| found.id > 0));
        assert!(candidates(i32::MAX).is_empty());
    }
}
