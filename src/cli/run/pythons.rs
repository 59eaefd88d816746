//! The Python processes below the launcher, so that it can say why nothing was recorded where none of them said that it
//! imported torch: the agent's variables did not reach one (`env -i`, sudo), or one has no agent.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use probe_inspect::stacks::processes;
use probe_proto::env;
use tokio::time::sleep;

use super::torch_imports::TorchImportReports;
use crate::cli::launch;

/// Number of processes that are named.
const MAX_NAMED: usize = 5;
/// Characters of a command line that are shown.
const MAX_COMMAND: usize = 200;
/// The pause between two looks at the processes: the first one, and the longest. Importing torch takes longer than the first
/// pauses.
const MIN_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The Python processes that were found at or below one process.
#[derive(Debug)]
pub(super) struct PythonProcesses {
    root: u32,
    /// `PROBE_COLLECTOR=…`, as it stands in a process's environment.
    variable: Vec<u8>,
    pids: BTreeSet<u32>,
    found: Vec<PythonProcess>,
}

#[derive(Debug)]
struct PythonProcess {
    pid: u32,
    command: String,
    has_variable: HasVariable,
}

/// Whether the agent's variables were among those that a process was started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HasVariable {
    Yes,
    No,
    /// The process is another user's.
    NotReadable,
}

impl PythonProcesses {
    /// Watches `root` and the processes below it, to be recorded by the collector at `endpoint`.
    pub(super) fn below(root: u32, endpoint: &str) -> Self {
        let variable = format!("{}={endpoint}", env::PROBE_COLLECTOR).into_bytes();
        Self { root, variable, pids: BTreeSet::new(), found: Vec::new() }
    }

    /// Looks at the processes, less and less often, until one of them has said that it imported torch.
    pub(super) async fn watch(&mut self, seen: &TorchImportReports) -> Infallible {
        let mut pause = MIN_PAUSE;
        loop {
            sleep(pause).await;
            if !seen.is_empty() {
                std::future::pending::<()>().await;
            }
            self.look();
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn look(&mut self) {
        let mut waiting = vec![self.root];
        while let Some(pid) = waiting.pop() {
            waiting.extend(children(pid));
            if !self.pids.contains(&pid)
                && let Some(command) = python_command(pid)
            {
                self.pids.insert(pid);
                self.found.push(PythonProcess { pid, command, has_variable: self.has_variable(pid) });
            }
        }
    }

    fn has_variable(&self, pid: u32) -> HasVariable {
        match fs::read(format!("/proc/{pid}/environ")) {
            Ok(variables) if variables.split(|byte| *byte == 0).any(|one| one == self.variable) => HasVariable::Yes,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => HasVariable::NotReadable,
            // The process has ended meanwhile, and is not reported.
            Err(_) => HasVariable::Yes,
            Ok(_) => HasVariable::No,
        }
    }

    /// Processes that the agent's variables did not reach, a sentence each.
    pub(super) fn unreached(&self) -> Vec<String> {
        let without = |python: &&PythonProcess| python.has_variable != HasVariable::Yes;
        let unreached: Vec<&PythonProcess> = self.found.iter().filter(without).collect();
        let mut sentences: Vec<String> = unreached
            .iter()
            .take(MAX_NAMED)
            .map(|PythonProcess { pid, command, has_variable }| match has_variable {
                HasVariable::NotReadable => format!("process {pid} ({command}) is another user's"),
                _ => format!("process {pid} ({command}) was started without the variables that probe run sets"),
            })
            .collect();
        if unreached.len() > MAX_NAMED {
            sentences.push(format!("{} more processes were started so", unreached.len() - MAX_NAMED));
        }
        sentences
    }

    /// Processes that the agent's variables reached, a sentence each.
    pub(super) fn reached(&self) -> Vec<String> {
        let sentence = |PythonProcess { pid, command, .. }: &PythonProcess| {
            format!("process {pid} ({command}) did not say that it imported torch")
        };
        self.with_variable().take(MAX_NAMED).map(sentence).collect()
    }

    /// Those of them that still run, a sentence each.
    pub(super) fn running(&self) -> Vec<String> {
        let runs = |python: &&PythonProcess| python_command(python.pid).as_ref() == Some(&python.command);
        let sentence = |PythonProcess { pid, command, .. }: &PythonProcess| {
            format!("process {pid} ({command}) goes on, and did not say that it imported torch")
        };
        self.with_variable().filter(runs).take(MAX_NAMED).map(sentence).collect()
    }

    fn with_variable(&self) -> impl Iterator<Item = &PythonProcess> {
        self.found.iter().filter(|python| python.has_variable == HasVariable::Yes)
    }
}

/// The processes that any thread of `pid` has started.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// The command line of a Python interpreter; None for anything else, and for one that is about to begin or has ended: such a
/// process has no command line, and its environment would seem to be empty.
fn python_command(pid: u32) -> Option<String> {
    // The link names the program that runs, also for a script. It is read first: a process that starts another program has its
    // file before its command line, and so is never shown with the command line of the program before.
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    let words = processes::command(pid).filter(|words| !words.is_empty())?;
    let program = program.unwrap_or_else(|_| PathBuf::from(&words[0]));
    program.file_name()?.to_str()?.starts_with("python").then(|| {
        let command = launch::command_text(&words);
        command.chars().filter(|c| !c.is_control()).take(MAX_COMMAND).collect()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Python that lives until its input ends, behind a shell, and that Python's process as it was found.
    fn behind_a_shell(before: &str) -> (Child, PythonProcesses) {
        let script = format!("{before} python3 -c 'import sys; sys.stdin.read()'; true");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env(env::PROBE_COLLECTOR, "unix:/run/gpt@1.sock").stdin(Stdio::piped());
        let shell = shell.spawn().unwrap();
        let mut pythons = PythonProcesses::below(shell.id(), "unix:/run/gpt@1.sock");
        while pythons.found.is_empty() {
            pythons.look();
        }
        pythons.look();
        (shell, pythons)
    }

    fn end(mut shell: Child) {
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
    }

    #[test]
    fn python_that_the_variables_did_not_reach_is_named() {
        let (shell, pythons) = behind_a_shell("env -i PATH=\"$PATH\"");
        assert_ne!(pythons.found[0].pid, shell.id(), "it is below the shell");
        let unreached = pythons.unreached();
        let says = "python3 -c 'import sys; sys.stdin.read()') was started without the variables that probe run sets";
        assert!(unreached.len() == 1 && unreached[0].ends_with(says), "{unreached:?}");
        assert!(pythons.reached().is_empty());
        end(shell);
    }

    #[test]
    fn python_that_they_reached_did_not_say_that_it_imported_torch() {
        let (shell, pythons) = behind_a_shell("");
        assert!(pythons.unreached().is_empty());
        let reached = pythons.reached();
        assert!(reached.len() == 1 && reached[0].ends_with(") did not say that it imported torch"), "{reached:?}");
        let running = pythons.running();
        assert!(
            running.len() == 1 && running[0].ends_with(") goes on, and did not say that it imported torch"),
            "{running:?}"
        );
        end(shell);
        assert!(pythons.running().is_empty() && pythons.reached().len() == 1);
    }
}
