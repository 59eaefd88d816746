//! The processes of a host that a file has events of: one, or several where it was put together from several traces.

use std::collections::{BTreeSet, HashMap};

use super::event::ChromeEvent;
use super::number::integer;
use super::range_patterns::StepRange;
use super::records::host;

/// Most processes of a file.
const MAX_PROCESSES: usize = 1024;

/// What of a file is collected.
#[derive(Debug)]
pub(crate) struct CollectOptions<'a> {
    /// Bytes of text whose events are collected.
    pub max_text: u64,
    /// The process whose events are collected; None: those of all.
    pub only: Option<SelectedProcess>,
    /// Which ranges are steps; None: those with the names of torch.profiler's steps.
    pub step_range: Option<&'a StepRange>,
}

/// A process of a file that has several.
#[derive(Debug, Clone)]
pub(crate) struct SelectedProcess {
    pub pid: i32,
    /// The other ones. Events that are of none of them are collected with the first process.
    pub others: BTreeSet<i32>,
    pub is_first: bool,
}

impl SelectedProcess {
    pub(crate) fn has(&self, event: &ChromeEvent<'_>) -> bool {
        match pid(&event.pid) {
            Some(pid) if pid == self.pid => true,
            Some(pid) if self.others.contains(&pid) => false,
            _ => self.is_first,
        }
    }
}

/// Events of a process.
#[derive(Debug, Default)]
struct EventCounts {
    events: u64,
    operators: u64,
}

/// The processes that were met so far.
#[derive(Debug, Default)]
pub(crate) struct HostProcesses {
    /// By the process's number as its text.
    counts: HashMap<String, EventCounts>,
    /// Ranks by process, where the name of the process says them.
    ranks: HashMap<i32, i32>,
}

impl HostProcesses {
    /// Counts a host event of this kind.
    pub(crate) fn count(&mut self, event: &ChromeEvent<'_>, kind: u8) {
        if !self.counts.contains_key(&*event.pid) {
            if self.counts.len() >= MAX_PROCESSES {
                return;
            }
            self.counts.insert(event.pid.to_string(), EventCounts::default());
        }
        if let Some(counts) = self.counts.get_mut(&*event.pid) {
            counts.events += 1;
            counts.operators += u64::from(kind == host::OPERATOR);
        }
    }

    /// Takes the rank from an event that names a process: `rank 3 (host, pid 4711)`, as `probe export` writes it.
    pub(crate) fn take_name(&mut self, event: &ChromeEvent<'_>) {
        let name = event.args.name.as_deref().filter(|_| event.name == "process_name");
        let rank = name.and_then(|name| name.strip_prefix("rank ")?.split([' ', ':']).next()?.parse().ok());
        if let Some((pid, rank)) = pid(&event.pid).zip(rank)
            && self.ranks.len() < MAX_PROCESSES
        {
            self.ranks.insert(pid, rank);
        }
    }

    /// The process with the most events; None where its number is no process's.
    pub(crate) fn main(&self) -> Option<i32> {
        self.counts.iter().max_by_key(|(_, counts)| counts.events).and_then(|(text, _)| pid(text))
    }

    /// The processes that have operators.
    pub(crate) fn with_operators(&self) -> BTreeSet<i32> {
        self.counts.iter().filter(|(_, counts)| counts.operators > 0).filter_map(|(text, _)| pid(text)).collect()
    }

    /// The rank of a process, where its name says it.
    pub(crate) fn rank(&self, pid: i32) -> Option<i32> {
        self.ranks.get(&pid).copied()
    }
}

/// The number of a process; None where the text is another one.
fn pid(text: &str) -> Option<i32> {
    i32::try_from(integer(text)?).ok()
}
