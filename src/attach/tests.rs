//! Real interpreters, of every version that is at hand, made to run a statement while they work.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Pythons of this machine: the one of the tests, and those of pyenv.
fn pythons() -> Vec<PathBuf> {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    let versions = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv/versions"));
    let entries = versions.and_then(|path| fs::read_dir(path).ok()).into_iter().flatten().flatten();
    let installed = entries.map(|entry| entry.path().join("bin/python3"));
    for python in
        installed.chain(std::env::var_os("PROBE_TEST_PYTHON").map(PathBuf::from)).chain([PathBuf::from("python3")])
    {
        let asked = Command::new(&python).args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).output();
        let Ok(asked) = asked else { continue };
        let version = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
        let minor = version.strip_prefix("3.").and_then(|minor| minor.parse::<u8>().ok());
        if minor.is_some_and(|minor| (9..14).contains(&minor)) {
            found.insert(version, python);
        }
    }
    assert!(!found.is_empty(), "there is no Python to test with");
    found.into_values().collect()
}

/// A Python process that runs a script, and has said so.
struct Script {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Script {
    fn start(command: &mut Command, script: &str) -> Self {
        let mut child =
            command.args(["-u", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut script = Self { child, lines };
        assert_eq!(script.line(), "ready");
        script
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Its end: what it printed, and that nothing ended it but itself.
    fn finish(mut self) -> String {
        drop(self.child.stdin.take());
        let line = self.line();
        assert!(self.child.wait().unwrap().success());
        line
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Injects a statement that makes a file, and waits for the file.
fn mark(pid: i32, interpreter: &Interpreter, directory: &Path, number: usize) -> inject::Injected {
    let file = directory.join(format!("mark-{number}"));
    let statement = format!("__import__('builtins').open({:?}, 'w').close()", file.to_str().unwrap());
    let injected = inject::inject(pid, interpreter, &statement).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !file.exists() {
        assert!(Instant::now() < deadline, "the statement never ran");
        std::thread::yield_now();
    }
    inject::release(pid, interpreter, &injected);
    injected
}

/// Counts in pure Python on the main thread, sleeps in another one, and reads its standard input in a third: until that
/// ends. Prints a sum that only correct arithmetic gives.
const WORK: &str = "
import sys, threading, time
over = threading.Event()
def read():
    sys.stdin.read()
    over.set()
def sleep():
    while not over.is_set():
        time.sleep(0.01)
threads = [threading.Thread(target=read), threading.Thread(target=sleep)]
[thread.start() for thread in threads]
print('ready')
good = rounds = 0
while not over.is_set():
    good += sum(i * 0.5 for i in range(1000)) == 249750.0
    rounds += 1
[thread.join() for thread in threads]
print('fine' if good == rounds else 'wrong')
";

/// The same on one thread, which makes no system call for long.
const ALONE: &str = "
import os, select
print('ready')
good = rounds = 0
while not select.select([0], [], [], 0)[0]:
    for _ in range(200):
        good += sum(i * 0.5 for i in range(1000)) == 249750.0
        rounds += 1
print('fine' if good == rounds else 'wrong')
";

/// Waits for its input on one thread: nothing is executed meanwhile but what is injected, when it wakes.
const WAITS: &str = "
import select, sys
print('ready')
naps = 0
while not select.select([0], [], [], 0.05)[0]:
    naps += 1
print('fine')
";

fn mappings(pid: i32) -> usize {
    maps::of(pid).unwrap().len()
}

#[test]
fn a_statement_runs_in_every_interpreter_at_hand() {
    let directory = tempfile::tempdir().unwrap();
    for (number, python) in pythons().iter().enumerate() {
        for (place, script) in [WORK, ALONE, WAITS].into_iter().enumerate() {
            let script = Script::start(&mut Command::new(python), script);
            let interpreter = Interpreter::find(script.pid()).unwrap();
            assert!(interpreter.version.is_some(), "{}", python.display());
            mark(script.pid(), &interpreter, directory.path(), number * 1000 + place * 100);
            let before = mappings(script.pid());
            for round in 1..10 {
                mark(script.pid(), &interpreter, directory.path(), number * 1000 + place * 100 + round);
            }
            // Nothing is left behind; the interpreter itself may have mapped something.
            assert!(mappings(script.pid()) <= before + 4, "{} and {before} mappings", mappings(script.pid()));
            assert_eq!(script.finish(), "fine", "{}", python.display());
        }
    }
}
