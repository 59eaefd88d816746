//! Whether the kernel killed a process for want of memory while a process ran: it counts that by control group.

use std::fs;
use std::path::PathBuf;

/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// A counter of kills, and its value when the watch began.
#[derive(Debug)]
pub(super) struct OutOfMemoryKills {
    counter: KillCounter,
    before: u64,
}

/// A counter of the kernel.
#[derive(Debug, PartialEq, Eq)]
struct KillCounter {
    file: PathBuf,
    /// What the counter is for, in words.
    scope: String,
}

impl OutOfMemoryKills {
    /// Reads the counter of the control group of `pid`, or of the whole node where that has none.
    pub(super) fn before(pid: i32) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let node = KillCounter { file: "/proc/vmstat".into(), scope: "this node".into() };
        counters(&groups).into_iter().chain([node]).find_map(|counter| {
            let before = counter.read()?;
            Some(Self { counter, before })
        })
    }

    /// The kills since then, in words; None if nothing was killed.
    pub(super) fn since(&self) -> Option<String> {
        let (now, before, scope) = (self.counter.read()?, self.before, &self.counter.scope);
        (now > before).then(|| {
            format!("out of memory: the kernel's OOM kills in {scope} rose from {before} to {now} while it ran")
        })
    }
}

impl KillCounter {
    fn read(&self) -> Option<u64> {
        count(&fs::read_to_string(&self.file).ok()?)
    }
}

/// The number in the line oom_kill of memory.events (version 2), memory.oom_control (version 1) or vmstat.
fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// The counters that may exist, from the lines of /proc/…/cgroup.
fn counters(groups: &str) -> Vec<KillCounter> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let files: &[(&str, &str)] = match (number, controllers) {
            ("0", "") => &[("", "memory.events"), ("/unified", "memory.events")],
            (_, list) if list.split(',').any(|one| one == "memory") => &[("/memory", "memory.oom_control")],
            _ => &[],
        };
        found.extend(files.iter().map(|(mount, file)| KillCounter {
            file: format!("{GROUPS}{mount}{}/{file}", path.trim_end_matches('/')).into(),
            scope: format!("control group {path}"),
        }));
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_found() {
        let files = |text| counters(text).into_iter().map(|one| one.file.display().to_string()).collect::<Vec<_>>();
        assert_eq!(
            files("0::/user.slice/job_7\n"),
            ["/sys/fs/cgroup/user.slice/job_7/memory.events", "/sys/fs/cgroup/unified/user.slice/job_7/memory.events"]
        );
        assert_eq!(files("4:cpu:/\n3:memory:/a:b\n"), ["/sys/fs/cgroup/memory/a:b/memory.oom_control"]);
        assert!(files("nonsense").is_empty());
    }

    #[test]
    fn a_count_that_rises_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("memory.events");
        fs::write(&file, "low 0\noom 3\noom_kill 1\noom_group_kill 0\n").unwrap();
        let kills = OutOfMemoryKills {
            counter: KillCounter { file: file.clone(), scope: "control group /a".into() },
            before: 1,
        };
        assert_eq!(kills.since(), None);
        fs::write(&file, "oom_kill 2\n").unwrap();
        assert!(kills.since().unwrap().contains("OOM kills in control group /a rose from 1 to 2"));
        fs::remove_file(&file).unwrap();
        assert_eq!(kills.since(), None, "a group that is gone says nothing");
    }
}
