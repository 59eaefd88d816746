//! Reads from /proc how a process ended that its parent has not reaped yet.

use std::fs;

/// The numbers of a process: here, and in every namespace within.
pub(super) fn names(pid: i32) -> Vec<i32> {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return Vec::new() };
    match field(&status, "NSpid:") {
        Some(numbers) => numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect(),
        // A kernel without namespaces of processes.
        None => vec![pid],
    }
}

/// The wait status of the process `pid` that began at `started`; None where the process is gone, or the kernel does not tell.
pub(super) fn wait_status(pid: i32, started: u64) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let found = of_stat(&stat, started)?;
    // The kernel writes a zero also for a reader that may not know.
    (found != 0 || may_know(pid)).then_some(found)
}

/// The wait status in a line of /proc/…/stat; None where it is that of another process or of one that lives.
fn of_stat(stat: &str, started: u64) -> Option<i32> {
    // Field 3 is the first behind the name in brackets.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let is_dead = matches!(*fields.first()?, "Z" | "X");
    let same = fields.get(19)?.parse() == Ok(started);
    (is_dead && same).then(|| fields.get(49)?.parse().ok()).flatten()
}

/// Whether the kernel tells this process: it has the same user, or is root.
fn may_know(pid: i32) -> bool {
    let ours = nix::unistd::geteuid().as_raw();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let Some(users) = field(&status, "Uid:") else { return false };
    ours == 0 || users.split_whitespace().take(3).all(|user| user.parse() == Ok(ours))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_dead_process_is_believed() {
        let stat = |state: &str, started: u64, status: i32| {
            format!("83 (a (b) c) {state} {} {started} {} {status}", "0 ".repeat(18).trim(), "0 ".repeat(29).trim())
        };
        assert_eq!(of_stat(&stat("Z", 4711, 768), 4711), Some(768));
        assert_eq!(of_stat(&stat("Z", 4712, 768), 4711), None, "its number was given to another one");
        assert_eq!(of_stat(&stat("S", 4711, 0), 4711), None, "it lives");
        assert_eq!(of_stat("83 (a", 4711), None);
    }

    #[test]
    fn this_process_knows_its_number() {
        let pid = std::process::id() as i32;
        assert!(names(pid).contains(&pid) && may_know(pid));
        assert_eq!(names(i32::MAX), [0; 0]);
    }
}
