//! Reads a process and its threads from /proc.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use probe_proto::v1::NativeThreads;

/// A thread as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStatus {
    pub name: String,
    /// R runs or is ready to run, S sleeps, D waits for a device, T is stopped, Z is dead.
    pub state: char,
}

/// The name of the agent's thread that is connected to a collector, or tries to be.
const UPLINK: &str = "probe-uplink";

/// Whether an agent's uplink runs in a process, to any collector.
pub fn has_uplink(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| tasks(pid).values().any(|task| task.name == UPLINK))
}

/// All threads of a process, by id. Threads that end meanwhile are left out.
pub fn tasks(pid: i32) -> BTreeMap<u32, ThreadStatus> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeMap::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| Some((id, task_of(&fs::read_to_string(format!("/proc/{pid}/task/{id}/stat")).ok()?)?)))
        .collect()
}

/// Reads a line of /proc/…/stat. The name in brackets may have brackets itself.
fn task_of(stat: &str) -> Option<ThreadStatus> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    Some(ThreadStatus { name: name.to_owned(), state: after.trim_start().chars().next()? })
}

/// The system call that a thread is in; None while it runs, and where it may not be read.
pub fn system_call(pid: i32, thread: u32) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")).ok()?;
    text.split_whitespace().next()?.parse().ok().filter(|number| *number >= 0)
}

/// When a process began, in ticks of the kernel, which with its id tells it from every other.
pub fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 22; the first two are before the bracket.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The words of a process's command line.
pub fn command(pid: u32) -> Option<Vec<OsString>> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = command.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    Some(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// The process that started a process, or took it over.
pub fn parent(pid: i32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// When a process began, by the wall clock.
pub fn started_at(pid: i32) -> Option<SystemTime> {
    let ticks = started(pid)?;
    let a_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let since_boot = Duration::from_secs_f64(ticks as f64 / a_second as f64);
    Some(UNIX_EPOCH + Duration::from_secs(boot) + since_boot)
}

/// Threads by name. A pool of threads is one entry, because numbers at the end of names are left out.
pub fn by_name<'a>(tasks: impl Iterator<Item = &'a ThreadStatus>) -> Vec<NativeThreads> {
    let mut found = BTreeMap::<String, NativeThreads>::new();
    for task in tasks {
        let name = task.name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '_' | '-' | '#' | ':'));
        let name = if name.is_empty() { &task.name } else { name };
        let entry = found
            .entry(name.to_owned())
            .or_insert_with(|| NativeThreads { name: name.to_owned(), ..Default::default() });
        entry.count += 1;
        entry.running += u32::from(task.state == 'R');
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_brackets() {
        let task = task_of("83 (Thread.(<lambda>)) S 1 19 0").unwrap();
        assert_eq!(task, ThreadStatus { name: "Thread.(<lambda>)".into(), state: 'S' });
        assert_eq!(task_of("83"), None);
    }

    #[test]
    fn this_process_is_known() {
        let pid = std::process::id() as i32;
        assert!(tasks(pid).contains_key(&(pid as u32)));
        let age = SystemTime::now().duration_since(started_at(pid).unwrap());
        assert!(age.as_ref().map_or(true, |age| *age < Duration::from_secs(3600)), "{age:?}");
        assert_eq!(started(i32::MAX), None);
    }

    #[test]
    fn pools_are_one_entry() {
        let task = |name: &str, state| ThreadStatus { name: name.into(), state };
        let all = [task("pt_autograd_0", 'S'), task("pt_autograd_1", 'R'), task("python", 'S')];
        let named = by_name(all.iter());
        assert_eq!((named[0].name.as_str(), named[0].count, named[0].running), ("pt_autograd", 2, 1));
        assert_eq!(named.len(), 2);
    }
}
