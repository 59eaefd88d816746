//! Makes real interpreters, of every version that is installed, run a statement while they work. Another one can be named:
//! `PROBE_TEST_PYTHON=/path/to/python3.14`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

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
        if minor.is_some_and(|minor| (9..15).contains(&minor)) {
            found.insert(version, python);
        }
    }
    assert!(!found.is_empty(), "there is no Python to test with");
    found.into_values().collect()
}

/// A Python process that runs a script, and has printed that it is ready.
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

    /// Waits for the end of the script, which must be its own, and returns what it printed.
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

/// Makes the process run a statement that makes a file, and waits for the file.
fn mark(pid: i32, interpreter: &Interpreter, directory: &Path, number: usize) -> SentStatement {
    let file = directory.join(format!("mark-{number}"));
    let statement = format!("__import__('builtins').open({:?}, 'w').close()", file.to_str().unwrap());
    let sent = send(pid, interpreter, &statement, &directory.join("script.py")).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while !file.exists() {
        assert!(Instant::now() < deadline, "the statement never ran");
        std::thread::yield_now();
    }
    finish(pid, interpreter, &sent);
    sent
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

/// Counts in pure Python on one thread, which makes no system call for long.
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
    maps::mappings_of(pid).unwrap().len()
}

#[test]
fn a_statement_runs_in_every_interpreter_at_hand() {
    let directory = tempfile::tempdir().unwrap();
    for (number, python) in pythons().iter().enumerate() {
        for (index, script) in [WORK, ALONE, WAITS].into_iter().enumerate() {
            let script = Script::start(&mut Command::new(python), script);
            let interpreter = Interpreter::find(script.pid()).unwrap();
            assert!(interpreter.version.is_some(), "{}", python.display());
            mark(script.pid(), &interpreter, directory.path(), number * 1000 + index * 100);
            let before = mappings(script.pid());
            for round in 1..10 {
                let sent = mark(script.pid(), &interpreter, directory.path(), number * 1000 + index * 100 + round);
                assert_eq!(sent.stopped.is_some(), interpreter.method() == InjectionMethod::Borrowing);
            }
            // Nothing is left behind; the interpreter itself may have mapped something.
            assert!(mappings(script.pid()) <= before + 4, "{} and {before} mappings", mappings(script.pid()));
            assert_eq!(script.finish(), "fine", "{}", python.display());
        }
    }
}

/// A script that is interrupted all the time, by signals that its handler counts.
const SIGNALS: &str = "
import select, signal, sys
seen = 0
def handler(number, frame):
    global seen
    seen += 1
signal.signal(signal.SIGUSR1, handler)
print('ready')
good = rounds = 0
while not select.select([0], [], [], 0)[0]:
    good += sum(i * 0.5 for i in range(1000)) == 249750.0
    rounds += 1
print('fine' if good == rounds and seen > 0 else 'wrong')
";

#[test]
fn signals_that_come_meanwhile_are_its_own() {
    let directory = tempfile::tempdir().unwrap();
    for (number, python) in pythons().iter().enumerate() {
        let script = Script::start(&mut Command::new(python), SIGNALS);
        let (pid, interpreter) = (script.pid(), Interpreter::find(script.pid()).unwrap());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // SAFETY: a signal to a child that has not been waited for.
                    unsafe { libc::kill(pid, libc::SIGUSR1) };
                    std::thread::yield_now();
                }
            });
            for round in 0..10 {
                mark(pid, &interpreter, directory.path(), number * 100 + round);
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(script.finish(), "fine", "{}", python.display());
    }
}

/// Waits with a time limit, on one thread, and says whether the waits were as long as they should be.
const NAPS: &str = "
import select, sys, time
print('ready')
fine = True
while not select.select([0], [], [], 0)[0]:
    begun = time.monotonic()
    time.sleep(0.3)
    fine = fine and time.monotonic() - begun >= 0.3
print('fine' if fine else 'short')
";

#[test]
fn a_wait_that_is_interrupted_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    for (number, python) in pythons().iter().enumerate() {
        let script = Script::start(&mut Command::new(python), NAPS);
        let interpreter = Interpreter::find(script.pid()).unwrap();
        for round in 0..4 {
            mark(script.pid(), &interpreter, directory.path(), number * 100 + round);
        }
        assert_eq!(script.finish(), "fine", "{}", python.display());
    }
}

/// Sleeps for long in one call, which is given how long and not until when.
const SLEEPS: &str = "
import ctypes
print('ready')
ctypes.CDLL(None).sleep(3600)
";

/// Waits until the only thread of a process is in one of these system calls.
fn wait_for_call(pid: i32, calls: &[i64]) {
    let deadline = Instant::now() + TIMEOUT;
    let call = || crate::stacks::processes::system_call(pid, pid.cast_unsigned());
    while !call().is_some_and(|call| calls.contains(&call)) {
        assert!(Instant::now() < deadline, "it is in system call {:?}", call());
        std::thread::yield_now();
    }
}

#[test]
fn a_sleep_goes_on_with_what_is_left_of_it() {
    let script = Script::start(&mut Command::new(&pythons()[0]), SLEEPS);
    let (pid, interpreter) = (script.pid(), Interpreter::find(script.pid()).unwrap());
    wait_for_call(pid, &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep]);
    for _ in 0..3 {
        let injected = inject::inject(pid, interpreter.addresses().unwrap(), "pass").unwrap();
        // The call by which the kernel goes on with the sleep.
        wait_for_call(pid, &[libc::SYS_restart_syscall]);
        assert!(injected.main);
    }
}

#[test]
fn a_thread_that_may_not_be_traced_is_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let script = Script::start(&mut Command::new(&pythons()[0]), WORK);
    let (pid, interpreter) = (script.pid(), Interpreter::find(script.pid()).unwrap());
    // As with threads of io_uring: the waiting threads are the best ones to borrow, and another tracer has them.
    let (seized, until) = (mpsc::channel(), mpsc::channel::<()>());
    let tracer = std::thread::spawn(move || {
        let entries = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let ids = entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<i32>().unwrap());
        let others: Vec<_> = ids.filter(|id| *id != pid).map(|id| trace::TracedThread::seize(id).unwrap()).collect();
        seized.0.send(others.len()).unwrap();
        let _ = until.1.recv();
    });
    assert_eq!(seized.1.recv().unwrap(), 2);
    mark(pid, &interpreter, directory.path(), 0);
    drop(until.0);
    tracer.join().unwrap();
    assert_eq!(script.finish(), "fine");
}

/// Waits in one call until a signal ends it.
const PAUSES: &str = "
import ctypes, signal
signal.signal(signal.SIGUSR1, lambda number, frame: None)
library = ctypes.CDLL(None, use_errno=True)
print('ready')
print(library.pause(), ctypes.get_errno())
";

#[test]
fn a_signal_that_comes_meanwhile_ends_the_call_that_it_would_have_ended() {
    let mut script = Script::start(&mut Command::new(&pythons()[0]), PAUSES);
    let (pid, interpreter) = (script.pid(), Interpreter::find(script.pid()).unwrap());
    let (addresses, memory) = (interpreter.addresses().unwrap(), inject::memory(pid).unwrap());
    let deadline = Instant::now() + TIMEOUT;
    let sent = loop {
        wait_for_call(pid, &[machine::PAUSE]);
        let sent = inject::borrow(pid, &mut Duration::default(), |thread, saved| {
            inject::begin(thread, saved, addresses, &memory)?;
            // SAFETY: a signal to a child that has not been waited for.
            let sent = unsafe { libc::kill(pid, libc::SIGUSR1) };
            Ok((sent, inject::system_call(thread, saved, addresses, libc::SYS_getpid, [0; 6])?))
        });
        match sent {
            // The thread got no processor in time to stop, so it was sent nothing.
            Err(inject::InjectionFailure::NotNow) if Instant::now() < deadline => {}
            sent => break sent,
        }
    };
    assert_eq!(sent.unwrap(), (0, u64::from(script.child.id())));
    assert_eq!(script.line(), format!("-1 {}", libc::EINTR));
}

/// Making a mount namespace takes root, as which CI runs the tests; for other users the test does nothing.
#[test]
fn a_process_in_another_mount_namespace_is_read_through_its_own_root() {
    let directory = tempfile::tempdir().unwrap();
    let python = &pythons()[0];
    // A root of its own below another directory: all of this root but /tmp, which is another one. The directory is kept, and
    // removed only when it is empty: nothing may ever empty what is mounted there.
    let root = tempfile::tempdir().unwrap().keep();
    let enter = format!(
        "mount --rbind / {root} && mount -t tmpfs none {root}/tmp && exec chroot {root} {python} -u -c \"$1\"",
        root = root.display(),
        python = python.display()
    );
    let allowed = Command::new("unshare").args(["-m", "--propagation", "private", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return;
    }
    let script = Script::start(
        Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", &enter, "sh", WORK])
            .env_remove("_"),
        "",
    );
    let interpreter = Interpreter::find(script.pid()).unwrap();
    let statement = "__import__('builtins').open('/tmp/seen', 'w').close()";
    let sent = send(script.pid(), &interpreter, statement, &directory.path().join("script.py")).unwrap();
    let seen = PathBuf::from(format!("/proc/{}/root/tmp/seen", script.pid()));
    let deadline = Instant::now() + TIMEOUT;
    while !seen.exists() {
        assert!(Instant::now() < deadline, "the statement never ran");
        std::thread::yield_now();
    }
    assert!(!Path::new("/tmp/seen").exists());
    assert!(!bootstrap::is_seen(script.pid(), directory.path()));
    finish(script.pid(), &interpreter, &sent);
    assert_eq!(script.finish(), "fine");
    fs::remove_dir(root).unwrap();
}

#[test]
fn what_can_not_be_attached_to_says_why() {
    let kind = |error: Error| (error.kind(), error.to_string());
    let (what, words) = kind(Interpreter::find(i32::MAX).unwrap_err());
    assert!(what == probe_common::error::ErrorKind::Unreachable && words.contains("there is no process"), "{words}");
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let (what, words) = kind(Interpreter::find(sleeper.id() as i32).unwrap_err());
    assert!(what == probe_common::error::ErrorKind::Failed && words.contains("not a Python process"), "{words}");
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(sleeper.id() as i32, libc::SIGSTOP) };
    let deadline = Instant::now() + TIMEOUT;
    while state(sleeper.id() as i32) != Some('T') {
        assert!(Instant::now() < deadline, "it does not stop");
        std::thread::yield_now();
    }
    assert!(check(sleeper.id() as i32).unwrap_err().hint_text().unwrap().contains("kill -CONT"));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let script = Script::start(&mut Command::new(&pythons()[0]), WORK);
    let interpreter = Interpreter::find(script.pid()).unwrap();
    let mut tracer = trace::TracedThread::seize(script.pid()).unwrap();
    let error = check(script.pid()).unwrap_err();
    assert!(error.kind() == probe_common::error::ErrorKind::Denied && error.to_string().contains("traces"), "{error}");
    // A thread that is stopped can be let go at once. One that does not stop in time is traced until its tracer's thread ends,
    // and this one goes on.
    let deadline = Instant::now() + TIMEOUT;
    while tracer.stop().is_err() {
        assert!(Instant::now() < deadline, "it does not stop");
    }
    drop(tracer);
    assert!(inject::inject(script.pid(), interpreter.addresses().unwrap(), "pass").is_ok());
    assert_eq!(script.finish(), "fine");
}
