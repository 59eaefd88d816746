//! Child processes: the memory that they hold, and the resources that those that load data have used.

use std::collections::BTreeMap;
use std::fs;

use super::proc::{self, ProcessIo};

/// Name of the process of a DataLoader's worker in torch 2.6 and later.
const DATA_WORKER: &str = "pt_data_worker";

/// Threads whose children are read, at most: each costs a file to open.
const MAX_THREADS: usize = 256;

/// The children of this process.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ChildProcesses {
    pub(super) count: i32,
    pub(super) resident_pages: u64,
    /// Workers of DataLoaders, by pid.
    pub(super) data_workers: BTreeMap<u32, DataWorker>,
}

/// Resources that a worker has used since it began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DataWorker {
    pub(super) used: proc::ProcessorTime,
    pub(super) run_delay: Option<f64>,
    pub(super) io: Option<ProcessIo>,
}

impl ChildProcesses {
    /// The sum of the increase of `value` since `before` over all workers. None without workers, or where the value of one is not
    /// known.
    pub(super) fn more_than(&self, before: &Self, value: impl Fn(&DataWorker) -> Option<f64>) -> Option<f64> {
        let more = |(pid, now): (&u32, &DataWorker)| {
            // The kernel reuses pids.
            let same = before.data_workers.get(pid).filter(|before| before.used.began == now.used.began);
            Some(value(now)? - same.map_or(Some(0.0), &value)?)
        };
        let all: Option<Vec<f64>> = self.data_workers.iter().map(more).collect();
        all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
    }
}

/// The children of this process. A child belongs to the thread that made it, so those of every thread are read. None where the
/// kernel does not list them (a build option), or where there are too many threads.
pub(super) fn read_children() -> Option<ChildProcesses> {
    let mut found = ChildProcesses::default();
    for (index, thread) in fs::read_dir("/proc/self/task").ok()?.flatten().enumerate() {
        if index >= MAX_THREADS {
            return None;
        }
        let children = match fs::read_to_string(thread.path().join("children")) {
            Ok(children) => children,
            // The thread has ended meanwhile.
            Err(_) if !thread.path().exists() => continue,
            Err(_) => return None,
        };
        for child in children.split_ascii_whitespace() {
            // A child that has ended meanwhile holds no memory.
            let Ok(statm) = fs::read(format!("/proc/{child}/statm")) else { continue };
            found.count += 1;
            found.resident_pages += proc::resident_pages(&statm).unwrap_or_default();
            if let Some((pid, worker)) = data_worker(child) {
                found.data_workers.insert(pid, worker);
            }
        }
    }
    Some(found)
}

fn data_worker(child: &str) -> Option<(u32, DataWorker)> {
    let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
    if name.trim_end() != DATA_WORKER {
        return None;
    }
    let (used, run_delay, io) = (proc::used(child)?, proc::run_delay(child), proc::io(child));
    Some((child.parse().ok()?, DataWorker { used, run_delay, io }))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_found_and_its_memory_counted() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a child");
        let found = read_children();
        drop(child.stdin.take());
        child.wait().expect("its end");
        // Not every kernel tells.
        if let Some(found) = found {
            assert!(found.count >= 1 && found.resident_pages > 0, "{found:?}");
        }
    }

    #[test]
    fn what_workers_used_is_since_the_look_before_or_since_they_began() {
        let worker =
            |began, seconds| DataWorker { used: proc::ProcessorTime { began, seconds }, run_delay: None, io: None };
        let of = |workers: &[(u32, DataWorker)]| ChildProcesses {
            data_workers: workers.iter().copied().collect(),
            ..ChildProcesses::default()
        };
        let before = of(&[(7, worker(1, 10.0)), (8, worker(1, 20.0)), (9, worker(1, 30.0))]);
        // 8 has ended, 9 is another process than before, 10 is new.
        let now = of(&[(7, worker(1, 10.5)), (9, worker(5, 0.25)), (10, worker(6, 0.125))]);
        let seconds = |worker: &DataWorker| Some(worker.used.seconds);
        assert_eq!(now.more_than(&before, seconds), Some(0.875));
        assert_eq!(of(&[]).more_than(&before, seconds), None);
        assert_eq!(now.more_than(&before, |worker| Some(worker.io?.read as f64)), None);
    }
}
