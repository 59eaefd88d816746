//! Which thread of a process is the best one to borrow: one that waits anyway, so that training stops for nothing.

use std::fs;

/// A thread that could be borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    /// Lower is better.
    rank: u8,
    pub(super) id: i32,
}

/// Threads that can be borrowed, the best first.
pub(super) fn candidates(pid: i32) -> Vec<Candidate> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<_> = ids.filter_map(|id| Some(Candidate { rank: rank(&state(pid, id)?)?, id })).collect();
    found.sort_unstable();
    found
}

/// `running`, or the number of the system call that a thread is in and what it was given.
fn state(pid: i32, id: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/task/{id}/syscall")).ok()
}

/// How good a thread in this state is; None where it may hold what a function that it is made to call could want, or
/// where it can't be stopped. Numbers are those of x86-64.
fn rank(state: &str) -> Option<u8> {
    match state.split_whitespace().next()?.parse::<i64>() {
        // futex: it waits for another thread, and goes on waiting when it is let go of.
        Ok(202) => Some(0),
        // read, poll, select, nanosleep, wait4, pselect6, ppoll, clock_nanosleep: these go on too.
        Ok(0 | 7 | 23 | 35 | 61 | 270 | 271 | 230) => Some(1),
        // mmap, mprotect, munmap, brk, mremap, madvise: in the middle of malloc.
        Ok(9 | 10 | 11 | 12 | 25 | 28) => None,
        // clone, fork, vfork, exit, exit_group, clone3: waits for a child where nothing reaches it, or is as good as gone.
        Ok(56 | 57 | 58 | 60 | 231 | 435) => None,
        // epoll_wait and its kin, semop, semtimedop, rt_sigtimedwait, io_getevents: a stop ends them with EINTR, which is
        // allowed and which not every program knows.
        Ok(232 | 281 | 441 | 65 | 220 | 128 | 208) => Some(5),
        // Not in a call and not running either: it was just stopped or is in a fault.
        Ok(-1) => Some(4),
        // Some call that it will soon be back from.
        Ok(_) => Some(2),
        Err(_) => Some(3),
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
        assert!(rank("202 0x7f 0x0") < rank("0 0x3") && rank("0 0x3") < rank("running"));
        assert!(rank("running") < rank("232 0x5"));
        assert_eq!(rank("12 0x0"), None);
        assert!(may_call_from(202) && !may_call_from(9));
    }

    #[test]
    fn a_thread_of_this_process_can_be_found() {
        assert!(candidates(std::process::id() as i32).iter().any(|found| found.id > 0));
        assert!(candidates(i32::MAX).is_empty());
    }
}
