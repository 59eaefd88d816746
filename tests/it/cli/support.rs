//! A home with a recorded run in it, and the binary run in that home.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use probe_common::paths::ProbeDirectories;
use probe_common::run_name::RunName;
use probe_store::runs::{RunInfo, RunState};

use crate::sql::data;

/// Directories for one test alone.
pub(crate) struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    /// A home without runs.
    pub(crate) fn empty() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// A home without runs on a file system in memory, where there is one.
    pub(crate) fn in_memory() -> Self {
        tempfile::tempdir_in("/dev/shm").map_or_else(|_| Self::empty(), |directory| Self { directory })
    }

    /// A home with the run gpt@1, which has ended.
    pub(crate) fn recorded() -> Self {
        let home = Self::empty();
        home.record("gpt@1", |_| ());
        home
    }

    /// Adds a run with the same rows as gpt@1, whose run.json `change` edits.
    pub(crate) fn record(&self, name: &str, change: impl FnOnce(&mut RunInfo)) -> PathBuf {
        let directory = self.directories().runs().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        data::store().write(&directory, &data::system()).unwrap();
        let mut info = RunInfo::begin(&RunName::parse(name).unwrap(), "torchrun --nproc-per-node 2 train.py");
        info.state = RunState::Ended;
        info.started = "2026-01-01T00:00:00Z".parse().unwrap();
        info.ended = Some("2026-01-01T00:00:04.5Z".parse().unwrap());
        info.exit_status = Some(0);
        info.ranks.extend([0, 1]);
        info.agents = 2;
        change(&mut info);
        info.write(&directory).unwrap();
        directory
    }

    pub(crate) fn directories(&self) -> ProbeDirectories {
        ProbeDirectories { home: self.directory.path().join("home"), runtime: self.directory.path().join("run") }
    }

    pub(crate) fn run_directory(&self) -> PathBuf {
        self.directories().runs().join("gpt@1")
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A command of the binary with these arguments, in an environment with this home only.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
        command.args(words).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("PROBE_HOME", self.directories().home).env("PROBE_RUNTIME_DIR", self.directories().runtime);
        command.stdin(Stdio::null());
        command
    }

    /// Runs the binary to its end.
    pub(crate) fn probe<const N: usize>(&self, words: [&str; N]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs the binary to its end, with text on its standard input.
    pub(crate) fn probe_with_input<const N: usize>(&self, words: [&str; N], input: &str) -> Output {
        let mut command = self.command(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Runs the binary, which must succeed, and returns its standard output.
    pub(crate) fn stdout<const N: usize>(&self, words: [&str; N]) -> String {
        let output = self.probe(words);
        assert!(output.status.success(), "{words:?}: {}", self.shown(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Exit status, standard output and standard error of a command, without this home's paths.
    pub(crate) fn shown(&self, output: &Output) -> String {
        let text =
            |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(self.path().to_str().unwrap(), "[DIR]");
        let status = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
        format!("exit {status}\n--- stdout\n{}--- stderr\n{}", text(&output.stdout), text(&output.stderr))
    }

    /// Starts the binary with these arguments on a terminal of its own, into which a test can type, for example Ctrl-C.
    pub(crate) fn terminal<const N: usize>(&self, width: u16, height: u16, words: [&str; N]) -> Terminal {
        let size = nix::pty::Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = nix::pty::openpty(&size, None).unwrap();
        let inner = self.command(words);
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(inner.get_program()).args(inner.get_args()).env_clear();
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm-256color");
        let slave = || Stdio::from(pty.slave.try_clone().unwrap());
        let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
        let master = std::fs::File::from(pty.master);
        let mut reading = master.try_clone().unwrap();
        let (send, seen) = std::sync::mpsc::channel();
        // Ends by itself: reading fails when the last process with the terminal has ended.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read) = std::io::Read::read(&mut reading, &mut buffer) {
                if read == 0 || send.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { master, child, seen, text: String::new() }
    }

    /// Runs the binary on a terminal of this width, and returns what the terminal received, escape sequences included.
    pub(crate) fn on_terminal(&self, width: usize, environment: &str, line: &str) -> String {
        let program = env!("CARGO_BIN_EXE_probe");
        let directories = self.directories();
        let (home, runtime) = (directories.home.display(), directories.runtime.display());
        let inner = format!(
            "stty cols {width} rows 40; export TERM=xterm-256color PROBE_HOME={home} PROBE_RUNTIME_DIR={runtime}; {environment} '{program}' {line}"
        );
        let output = Command::new("script").args(["-qec", &inner, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", self.shown(&output));
        String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
    }
}

/// A program on a terminal.
pub(crate) struct Terminal {
    master: std::fs::File,
    child: std::process::Child,
    seen: std::sync::mpsc::Receiver<Vec<u8>>,
    text: String,
}

impl Terminal {
    /// Waits until the text that the terminal has received satisfies a condition, and returns it.
    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&str) -> bool) -> &str {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !holds(&self.text) {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match self.seen.recv_timeout(left) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("{what}: {error}; seen: {}", self.text),
            }
        }
        &self.text
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the program, and returns its exit status and all text that the terminal received.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        // Until no process has the terminal open any more.
        while let Ok(bytes) = self.seen.recv_timeout(std::time::Duration::from_secs(60)) {
            self.text.push_str(&String::from_utf8_lossy(&bytes));
        }
        (status.code(), self.text)
    }
}

/// Compares exit status, standard output and standard error of a command with a snapshot.
macro_rules! check {
    ($home:expr, $name:literal, $output:expr) => {{
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("snapshots");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!($name, $home.shown(&$output)));
    }};
}
pub(crate) use check;
