//! Python processes of this user that train and that no collector knows.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::processes;

/// Longest command line that is shown (bytes).
const LONGEST_COMMAND: usize = 4096;

/// A process that has torch in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) pid: u32,
    /// The process that started it.
    pub(crate) parent: u32,
    pub(crate) command: String,
}

/// Processes that have torch mapped, but for those of `known`, and for their children: DataLoader workers are no
/// training processes of their own.
pub(crate) fn find(known: &BTreeSet<u32>) -> Vec<Found> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mine = nix::unistd::geteuid().as_raw();
    let all: Vec<Found> = pids.filter(|pid| !known.contains(pid)).filter_map(|pid| look(pid, mine)).collect();
    without_children(all, known)
}

fn look(pid: u32, mine: u32) -> Option<Found> {
    if fs::metadata(format!("/proc/{pid}")).ok()?.uid() != mine || !has_torch(pid) {
        return None;
    }
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = command.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let mut command = words.join(" ");
    command.truncate(command.floor_char_boundary(LONGEST_COMMAND));
    let parent = processes::parent(i32::try_from(pid).ok()?)?;
    // What torchrun starts is what trains; itself it only waits.
    let launcher = words.iter().any(|word| word == "torch.distributed.run" || word.ends_with("/torchrun"));
    (!command.is_empty() && !launcher).then_some(Found { pid, parent, command })
}

/// Whether libtorch is mapped, which it is from `import torch` on.
fn has_torch(pid: u32) -> bool {
    let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else { return false };
    maps.windows(NAME.len()).any(|part| part == NAME)
}

const NAME: &[u8] = b"/libtorch_cpu.so";

/// Workers have the parent's code in them, and its parent is one of those that were found.
fn without_children(all: Vec<Found>, known: &BTreeSet<u32>) -> Vec<Found> {
    let parents: BTreeSet<u32> = all.iter().map(|found| found.pid).chain(known.iter().copied()).collect();
    let mut found: Vec<Found> = all.into_iter().filter(|found| !parents.contains(&found.parent)).collect();
    found.sort_by_key(|found| found.pid);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_left_out_also_those_of_known_processes() {
        let process = |pid, parent| Found { pid, parent, command: "python train.py".into() };
        let all = vec![process(12, 10), process(10, 1), process(11, 10), process(21, 20)];
        let left: Vec<u32> = without_children(all, &BTreeSet::from([20])).iter().map(|found| found.pid).collect();
        assert_eq!(left, [10]);
    }

    #[test]
    fn this_process_has_no_torch() {
        assert!(!has_torch(std::process::id()));
        assert_eq!(look(std::process::id(), nix::unistd::geteuid().as_raw()), None);
    }
}
