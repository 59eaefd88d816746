//! A home with a recorded run in it, and the binary run in that home.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use probe::paths::Places;
use probe::runs::{RunInfo, RunName, State};

use crate::data;

/// Directories of one test's own.
pub(crate) struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    /// With nothing in it.
    pub(crate) fn empty() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// With the run gpt@1, which has ended.
    pub(crate) fn recorded() -> Self {
        let home = Self::empty();
        let directory = home.run_directory();
        std::fs::create_dir_all(&directory).unwrap();
        data::store().write(&directory, &data::system()).unwrap();
        let mut info = RunInfo::begin(&RunName::parse("gpt@1").unwrap(), "torchrun --nproc-per-node 2 train.py");
        info.state = State::Ended;
        info.started = "2026-01-01T00:00:00Z".parse().unwrap();
        info.ended = Some("2026-01-01T00:00:04.5Z".parse().unwrap());
        info.exit_status = Some(0);
        info.ranks.extend([0, 1]);
        info.agents = 2;
        info.write(&directory).unwrap();
        home
    }

    pub(crate) fn places(&self) -> Places {
        Places { home: self.directory.path().join("home"), runtime: self.directory.path().join("run") }
    }

    pub(crate) fn run_directory(&self) -> PathBuf {
        self.places().runs().join("gpt@1")
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The binary with these words, in an environment that says nothing else.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
        command.args(words).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("PROBE_HOME", self.places().home).env("PROBE_RUNTIME_DIR", self.places().runtime);
        command.stdin(Stdio::null());
        command
    }

    /// Runs the binary to its end.
    pub(crate) fn probe<const N: usize>(&self, words: [&str; N]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The same with something on its standard input.
    pub(crate) fn probe_with_input<const N: usize>(&self, words: [&str; N], input: &str) -> Output {
        let mut command = self.command(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Runs the binary, which has to end well, and gives what it printed.
    pub(crate) fn stdout<const N: usize>(&self, words: [&str; N]) -> String {
        let output = self.probe(words);
        assert!(output.status.success(), "{words:?}: {}", self.shown(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// All that can be seen of a command, with this home's own paths taken out.
    pub(crate) fn shown(&self, output: &Output) -> String {
        let text =
            |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(self.path().to_str().unwrap(), "[DIR]");
        let status = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
        format!("exit {status}\n--- stdout\n{}--- stderr\n{}", text(&output.stdout), text(&output.stderr))
    }

    /// The binary on a terminal of this width: what the terminal got, escape sequences included.
    pub(crate) fn on_terminal(&self, width: usize, environment: &str, line: &str) -> String {
        let program = env!("CARGO_BIN_EXE_probe");
        let places = self.places();
        let (home, runtime) = (places.home.display(), places.runtime.display());
        let inner = format!(
            "stty cols {width} rows 40; export TERM=xterm-256color PROBE_HOME={home} PROBE_RUNTIME_DIR={runtime}; {environment} '{program}' {line}"
        );
        let output = Command::new("script").args(["-qec", &inner, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", self.shown(&output));
        String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
    }
}

/// Compares all that can be seen of a command with what was seen before.
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
