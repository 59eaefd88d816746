//! Python processes of this user that train and that no collector here knows.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::launcher::is_launcher;
use super::processes;

/// Longest command line that is shown (bytes).
const MAX_COMMAND_LENGTH: usize = 4096;

/// A process that has torch in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchProcess {
    pub pid: u32,
    /// The process that started this one.
    pub parent: u32,
    pub command: String,
    /// Whether it has an agent, which is connected to a collector elsewhere, or to none.
    pub has_agent: bool,
}

/// Processes that have torch mapped, without those in `known` and without workers, which are no training processes of their own.
pub fn find(known: &BTreeSet<u32>) -> Vec<TorchProcess> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mine = nix::unistd::geteuid().as_raw();
    let all: Vec<TorchProcess> = pids.filter(|pid| !known.contains(pid)).filter_map(|pid| look(pid, mine)).collect();
    let mut parents: BTreeMap<u32, String> = all.iter().map(|process| (process.pid, process.command.clone())).collect();
    parents.extend(known.iter().filter_map(|pid| Some((*pid, line_of(&processes::command(*pid)?)))));
    without_forks(all, &parents)
}

/// The command line as text.
fn line_of(words: &[OsString]) -> String {
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn look(pid: u32, mine: u32) -> Option<TorchProcess> {
    if fs::metadata(format!("/proc/{pid}")).ok()?.uid() != mine || !has_torch(pid) {
        return None;
    }
    let words = processes::command(pid)?;
    let command = line_of(&words);
    let parent = processes::parent(i32::try_from(pid).ok()?)?;
    let other = command.is_empty() || is_launcher(&words) || is_worker(pid, &command);
    (!other).then(|| TorchProcess { pid, parent, command, has_agent: processes::has_uplink(pid) })
}

/// Whether libtorch is mapped, which it is from `import torch` on.
fn has_torch(pid: u32) -> bool {
    let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else { return false };
    maps.windows(NAME.len()).any(|part| part == NAME)
}

const NAME: &[u8] = b"/libtorch_cpu.so";

/// The main thread of a DataLoader's worker is called that, since torch 2.6 however it was started.
const DATA_WORKER: &str = "pt_data_worker";
/// Part of the command line of a process that compiles for another one.
const COMPILE_WORKER: &str = "/_inductor/compile_worker";

fn is_worker(pid: u32, command: &str) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.starts_with(DATA_WORKER) || command.contains(COMPILE_WORKER)
}

/// Leaves out forked children, which have their parent's command line. Other processes that one with torch started are not its
/// workers: a test runner or a sweep starts training, too.
fn without_forks(all: Vec<TorchProcess>, parents: &BTreeMap<u32, String>) -> Vec<TorchProcess> {
    let forked =
        |process: &TorchProcess| parents.get(&process.parent).is_some_and(|command| *command == process.command);
    let mut found: Vec<TorchProcess> = all.into_iter().filter(|process| !forked(process)).collect();
    found.sort_by_key(|found| found.pid);
    for one in &mut found {
        one.command.truncate(one.command.floor_char_boundary(MAX_COMMAND_LENGTH));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_children_are_left_out_and_others_are_not() {
        let process =
            |pid, parent, command: &str| TorchProcess { pid, parent, command: command.into(), has_agent: false };
        let all = vec![
            process(12, 10, "python a.py"),
            process(10, 1, "python a.py"),
            process(11, 10, "python b.py"),
            process(21, 20, "python c.py"),
        ];
        let parents = BTreeMap::from([(10, "python a.py".to_owned()), (20, "python c.py".to_owned())]);
        let left: Vec<u32> = without_forks(all, &parents).iter().map(|found| found.pid).collect();
        assert_eq!(left, [10, 11]);
    }

    #[test]
    fn this_process_has_no_torch() {
        assert!(!has_torch(std::process::id()));
        assert_eq!(look(std::process::id(), nix::unistd::geteuid().as_raw()), None);
    }
}
