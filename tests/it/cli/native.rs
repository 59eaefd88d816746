//! `probe PID stack --native`: of a real Python process, in a build that can (`make test-native`) and in one that can't.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cli::support::Home;

const SLEEPER: &str = "
import sys, time
def nap(_):
    time.sleep(3600)
print('ready', flush=True)
sorted([1], key=nap)
";

/// A process that ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        let mut child =
            Command::new("python3").args(["-c", SLEEPER]).stdout(Stdio::piped()).spawn().expect("python3 is here");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        let sleeper = Self(child);
        // The process printed this before it slept.
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", sleeper.0.id())).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !state().contains(") S ") {
            assert!(Instant::now() < deadline, "it never slept: {}", state());
            std::thread::yield_now();
        }
        sleeper
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn frames_of_c_stand_between_those_of_python_or_it_is_said_that_they_cannot() {
    let (home, sleeper) = (Home::empty(), Sleeper::start());
    let pid = sleeper.0.id().to_string();
    let shown = home.probe([&pid, "stack", "--native"]);
    let page = String::from_utf8(shown.stdout).unwrap();
    if !cfg!(feature = "native") {
        assert_eq!(shown.status.code(), Some(1));
        assert!(
            page.contains("this build of probe reads Python frames only")
                && page.contains("hint: build one with --features native"),
            "{page}"
        );
        return;
    }
    assert!(shown.status.success(), "{page}");
    let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("no {what} in {page}"));
    assert!(at("nanosleep") < at("nap") && at("nap") < at("<module>"), "{page}");
    assert!(page.contains("libc.so") && page.contains("read while stopped for"), "{page}");
    // The first frame of the user's own is Python's.
    assert!(page.contains("> nap"), "{page}");
}

#[test]
fn it_is_no_way_to_sample() {
    let (home, pid) = (Home::empty(), std::process::id().to_string());
    assert_eq!(home.probe([&pid, "stack", "--native", "--duration", "1s"]).status.code(), Some(2));
}
