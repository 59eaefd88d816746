//! Users of one machine among each other, where the modes of files have become too open: the kernel's word counts.
//!
//! Acting as another user takes root, as which CI runs the tests; without root these tests check nothing.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::unistd::geteuid;

/// Uids that no user has.
const ALICE: u32 = 61234;
const BOB: u32 = 61235;

struct Town {
    directory: tempfile::TempDir,
    binary: PathBuf,
}

impl Town {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        set_permissions(directory.path(), Permissions::from_mode(0o711)).unwrap();
        let binary = directory.path().join("probe");
        // A copy that every user can execute, written by a process of its own: a child that another test forks would hold a copy
        // of our own open for writing until it executes, and a file open for writing can't be executed (ETXTBSY).
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_probe")).arg(&binary).status().unwrap();
        assert!(copied.success());
        Self { directory, binary }
    }

    fn command(&self, uid: u32, words: &[&str]) -> Command {
        let home = self.directory.path().join(uid.to_string());
        std::fs::create_dir_all(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(uid), Some(uid)).unwrap();
        let mut command = Command::new(&self.binary);
        command.args(words).env_clear().stdin(Stdio::null()).uid(uid).gid(uid);
        command.env("PROBE_HOME", home.join("home")).env("PROBE_RUNTIME_DIR", home.join("run"));
        command
    }

    fn ask(&self, uid: u32, endpoint: &str) -> (Option<i32>, String) {
        let Output { status, stdout, stderr } =
            self.command(uid, &[endpoint, "query", "SELECT 41 + 1 AS n"]).output().unwrap();
        (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
    }

    /// A collector, and its socket, whose mode lets every user open it by now.
    fn serve(&self, uid: u32) -> (Served, PathBuf) {
        let run = self.directory.path().join(uid.to_string()).join("run");
        let socket = run.join("gpt@1.sock");
        let child = self.command(uid, &["serve", "--name", "gpt"]).stderr(Stdio::null()).spawn().unwrap();
        let served = Served(child);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while self.ask(uid, &unix(&socket)).0 != Some(0) {
            assert!(std::time::Instant::now() < deadline, "the collector does not begin");
        }
        set_permissions(run.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
        set_permissions(&run, Permissions::from_mode(0o755)).unwrap();
        set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
        (served, socket)
    }
}

struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn unix(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

#[test]
fn a_collector_serves_its_own_user_and_root_whatever_the_modes_are() {
    if !geteuid().is_root() {
        return;
    }
    let town = Town::new();
    let (_served, socket) = town.serve(0);
    let endpoint = unix(&socket);
    let (status, said) = town.ask(ALICE, &endpoint);
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains("is for its own user and root") && said.contains("hint:"), "{said}");
    let rows = town.command(
        0,
        &[
            &endpoint,
            "query",
            "SELECT asked_by, sql, status FROM probe.queries WHERE status = 'refused'",
            "--format",
            "csv",
        ],
    );
    let rows = { rows }.output().unwrap();
    assert_eq!(String::from_utf8(rows.stdout).unwrap(), format!("asked_by,sql,status\nuid:{ALICE},,refused\n"));
}

#[test]
fn nobody_asks_or_feeds_another_user_s_collector_and_root_may_ask_anybody() {
    if !geteuid().is_root() {
        return;
    }
    let town = Town::new();
    let (_served, socket) = town.serve(ALICE);
    let endpoint = unix(&socket);
    assert_eq!(town.ask(ALICE, &endpoint).0, Some(0));
    let (status, said) = town.ask(BOB, &endpoint);
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains(&format!("belongs to uid {ALICE}, not to you")), "{said}");
    let (status, said) = town.ask(0, &endpoint);
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn a_process_of_somebody_else_is_not_attached_to() {
    if !geteuid().is_root() {
        return;
    }
    let town = Town::new();
    let attach = |uid: u32, pid: u32| {
        let Output { status, stderr, .. } = town.command(uid, &["attach", &pid.to_string()]).output().unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    };
    let (status, said) = attach(ALICE, std::process::id());
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains("hint: it belongs to root") && said.contains("sudo"), "{said}");
    let mut sleeper = Command::new("sleep").arg("60").uid(ALICE).spawn().unwrap();
    let (status, said) = attach(BOB, sleeper.id());
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains(&format!("belongs to uid {ALICE}")), "{said}");
    // Root may attach, but an agent of another user could not answer through root's socket.
    let (status, said) = attach(0, sleeper.id());
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains(&format!("sudo -u '#{ALICE}' probe attach")), "{said}");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn a_token_is_not_shown_to_whoever_listens_at_the_port_of_a_collector_that_is_gone() {
    if !geteuid().is_root() {
        return;
    }
    let town = Town::new();
    // A socket belongs to whom its maker is to the file system, which each thread says for itself.
    fn as_alice<T>(make: impl FnOnce() -> std::io::Result<T>) -> T {
        let me = nix::unistd::setfsuid(ALICE.into());
        let made = make();
        nix::unistd::setfsuid(me);
        made.unwrap()
    }
    let listener = as_alice(|| std::net::TcpListener::bind("127.0.0.1:0"));
    let address = listener.local_addr().unwrap().to_string();
    let token = town.directory.path().join("token");
    std::fs::write(&token, "probe_0123456789abcdef0123456789abcdef").unwrap();
    set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let mut command = town.command(0, &[&address, "query", "SELECT 1", "--token-file", token.to_str().unwrap()]);
    let asking = command.stderr(Stdio::piped()).spawn().unwrap();
    let (mut connection, _) = as_alice(|| listener.accept());
    let heard = std::io::Read::read(&mut connection, &mut [0]).unwrap();
    assert_eq!(heard, 0, "it was connected to, and nothing more");
    let Output { status, stderr, .. } = asking.wait_with_output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(4), "{said}");
    assert!(said.contains(&format!("the listener at {address} belongs to uid {ALICE}, not to you")), "{said}");
}
