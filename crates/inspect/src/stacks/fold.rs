//! What processes have in common: threads of several ranks that have the same stack are one group, so that the odd
//! one is seen.

use std::collections::{BTreeSet, HashMap};

use probe_proto::v1::{ProcessStacks, ThreadStack};

/// Threads of a kind (main, or of one pool) that have the same stack.
#[derive(Debug)]
pub struct ThreadGroup<'a> {
    /// The processes that the threads belong to, in order, each once.
    pub owners: Vec<ProcessLabel>,
    /// One thread of the group, as an example of all.
    pub thread: &'a ThreadStack,
    /// Number of threads, and of these, how many hold the GIL of their process, run, and moved while they were read.
    pub count: usize,
    pub gil: usize,
    pub running: usize,
    pub moving: usize,
    /// What the threads wait for, each once.
    pub waits_for: BTreeSet<&'a str>,
}

/// A process, by the name that a page gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessLabel {
    Rank(i32),
    /// A process that is in no process group.
    Pid(u32),
}

impl ProcessLabel {
    pub fn of(process: &ProcessStacks) -> Self {
        process.rank.map_or(Self::Pid(process.pid), Self::Rank)
    }
}

/// What makes two threads one group.
type ThreadGroupKey<'a> = (bool, &'a str, Vec<(&'a str, &'a str, Option<u32>)>);

/// The groups of all threads: main threads first, those of most processes first.
pub fn groups(processes: &[ProcessStacks]) -> Vec<ThreadGroup<'_>> {
    let mut indexes = HashMap::<ThreadGroupKey<'_>, usize>::new();
    let mut groups = Vec::<ThreadGroup<'_>>::new();
    for process in processes {
        for thread in &process.threads {
            let key: ThreadGroupKey<'_> = (thread.main, pool(&thread.name), frames_of(thread));
            let index = *indexes.entry(key).or_insert_with(|| {
                groups.push(ThreadGroup::new(thread));
                groups.len() - 1
            });
            groups[index].add(ProcessLabel::of(process), thread);
        }
    }
    groups.sort_by_key(|group| {
        (!group.thread.main, std::cmp::Reverse(group.owners.len()), group.owners.first().copied())
    });
    groups
}

impl<'a> ThreadGroup<'a> {
    fn new(thread: &'a ThreadStack) -> Self {
        Self { owners: Vec::new(), thread, count: 0, gil: 0, running: 0, moving: 0, waits_for: BTreeSet::new() }
    }

    fn add(&mut self, owner: ProcessLabel, thread: &'a ThreadStack) {
        if let Err(index) = self.owners.binary_search(&owner) {
            self.owners.insert(index, owner);
        }
        self.count += 1;
        self.gil += usize::from(thread.gil);
        self.running += usize::from(thread.running);
        self.moving += usize::from(thread.moving);
        if !thread.waits_for.is_empty() {
            self.waits_for.insert(&thread.waits_for);
        }
    }
}

fn frames_of(thread: &ThreadStack) -> Vec<(&str, &str, Option<u32>)> {
    thread.frames.iter().map(|frame| (frame.function.as_str(), frame.file.as_str(), frame.line)).collect()
}

/// The name of a thread's pool: its threads have that name and a number.
fn pool(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// The names of processes: "rank 7", "ranks 0-6, 9", "process 4711".
pub fn names(owners: &[ProcessLabel]) -> String {
    let ranks: Vec<i32> = owners
        .iter()
        .filter_map(|owner| if let ProcessLabel::Rank(rank) = owner { Some(*rank) } else { None })
        .collect();
    let pids: Vec<String> = owners
        .iter()
        .filter_map(|owner| if let ProcessLabel::Pid(pid) = owner { Some(pid.to_string()) } else { None })
        .collect();
    let mut parts = Vec::new();
    if !ranks.is_empty() {
        parts.push(format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, ranges(&ranks)));
    }
    if !pids.is_empty() {
        parts.push(format!("{} {}", if pids.len() == 1 { "process" } else { "processes" }, pids.join(", ")));
    }
    parts.join(", ")
}

/// Numbers, which come in order, as ranges: "0-6, 9".
pub fn ranges(numbers: &[i32]) -> String {
    let mut parts: Vec<(i32, i32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if i64::from(*last) + 1 == i64::from(*number) => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let part = |(first, last): (i32, i32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use probe_proto::v1::StackFrame;

    use super::*;

    fn process(rank: i32, line: u32, waits_for: &str) -> ProcessStacks {
        let frame = StackFrame { function: "f".into(), file: "/t.py".into(), line: Some(line), ..Default::default() };
        let thread = ThreadStack { main: true, frames: vec![frame], waits_for: waits_for.into(), ..Default::default() };
        ProcessStacks { rank: Some(rank), threads: vec![thread], ..Default::default() }
    }

    #[test]
    fn the_odd_one_stands_out() {
        let mut all: Vec<ProcessStacks> = (0..8).map(|rank| process(rank, 10, "collective all_reduce")).collect();
        all[3] = process(3, 20, "");
        let groups = groups(&all);
        let rows: Vec<_> = groups.iter().map(|group| (names(&group.owners), group.waits_for.len())).collect();
        assert_eq!(rows, [("ranks 0-2, 4-7".to_owned(), 1), ("rank 3".to_owned(), 0)]);
    }

    #[test]
    fn ranks_are_written_as_people_do() {
        assert_eq!(ranges(&[0, 1, 2, 3, 7, 9, 10]), "0-3, 7, 9, 10");
        assert_eq!(names(&[ProcessLabel::Rank(7), ProcessLabel::Pid(12)]), "rank 7, process 12");
        assert_eq!(names(&[ProcessLabel::Pid(12), ProcessLabel::Pid(14)]), "processes 12, 14");
    }
}
