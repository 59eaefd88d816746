//! `probe run` and `probe serve` with children that do not train.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use probe_store::runs::{RunInfo, RunState};

use crate::cli::support::Home;

/// Waits for a condition.
pub(super) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    // Less than a minute: then a collector looks for findings without being asked to, and tests are about what comes before.
    let patience = Duration::from_secs(50);
    let deadline = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

fn first_line(stream: impl std::io::Read) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

pub(super) fn info(home: &Home, run: &str) -> RunInfo {
    RunInfo::read(&home.directories().runs().join(run)).unwrap()
}

#[test]
fn the_child_has_its_own_streams_and_exit_status() {
    let home = Home::empty();
    let script = "read line; echo \"out $line\"; echo err >&2; exit 7";
    let output = home.probe_with_input(["run", "--name", "shell", "--", "sh", "-c", script], "in\n");
    let said = home.shown(&output);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert_eq!(output.stdout, b"out in\n", "{said}");
    assert!(said.contains("probe: run shell@1 at unix:[DIR]/run/shell@1.sock") && said.contains("\nerr\n"), "{said}");
    // A command that fails at once has said why.
    assert!(said.contains("nothing was recorded") && !said.contains("hint: "), "{said}");
    let info = info(&home, "shell@1");
    assert_eq!((info.state, info.exit_status, info.agents), (RunState::Ended, Some(7), 0));
    assert!(info.command.starts_with("sh -c 'read line; "), "{}", info.command);
    assert!(!home.directories().socket_for("shell@1").exists());
    assert_eq!(home.stdout(["shell", "query", "SELECT COUNT(*) AS n FROM python.steps", "--format", "csv"]), "n\n0\n");
}

#[test]
fn the_run_s_file_says_where_it_was_started_and_at_which_commit() {
    let home = Home::empty();
    let repository = home.path().join("code");
    std::fs::create_dir(&repository).unwrap();
    let git = |words: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let output = Command::new("git").arg("-C").arg(&repository).args(identity).args(words).output().unwrap();
        assert!(output.status.success(), "{}", home.shown(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    std::fs::write(repository.join("train.py"), "1").unwrap();
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "-m", "first"]);
    std::fs::write(repository.join("train.py"), "2").unwrap();
    let run_once = |name: &str, number: u32| {
        let output = home.command(["run", "--name", name, "true"]).current_dir(&repository).output().unwrap();
        assert!(output.status.success(), "{}", home.shown(&output));
        info(&home, &format!("{name}@{number}"))
    };
    // A start waits a second for git at most. Where the machine is too busy for that, another run is started.
    let run = |name: &str| {
        let said = (1..=5).map(|number| run_once(name, number)).find(|info| info.git_dirty.is_some());
        said.expect("git has said nothing in five runs")
    };
    let first = run("dirty");
    assert_eq!((first.git_commit, first.git_dirty), (Some(git(&["rev-parse", "HEAD"])), Some(true)));
    assert_eq!(first.directory.unwrap(), std::fs::canonicalize(&repository).unwrap());
    git(&["commit", "--quiet", "-am", "second"]);
    assert_eq!(run("clean").git_dirty, Some(false));
    std::fs::remove_dir_all(repository.join(".git")).unwrap();
    let without = run_once("without", 1);
    assert_eq!((without.git_commit, without.git_dirty, without.last_step), (None, None, None));
    let text = std::fs::read_to_string(home.directories().runs().join("without@1/run.json")).unwrap();
    assert!(!text.contains("git"), "absent, not null: {text}");
}

#[test]
fn the_child_is_told_what_it_needs_to_know() {
    let home = Home::empty();
    let script = home.path().join("train_small.py");
    std::fs::write(&script, "").unwrap();
    let child = "test -S \"${PROBE_COLLECTOR#unix:}\" && echo $PROBE $PROBE_RUN";
    let output = home.command(["run", "sh", "-c", child, script.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.stdout, b"1 train_small@1\n", "{}", home.shown(&output));
    let output = home.command(["run", "true"]).env("PROBE_RUN", "chosen").output().unwrap();
    assert!(output.status.success() && home.directories().runs().join("chosen@1").exists(), "{}", home.shown(&output));
    assert!(home.probe(["run", "--name", "chosen", "true"]).status.success());
    assert!(home.directories().runs().join("chosen@2").exists(), "a name that has ended is free again");
}

#[test]
fn a_killed_child_ends_probe_as_it_would_a_shell() {
    let home = Home::empty();
    let output = home.probe(["run", "--name", "killed", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(137), "{}", home.shown(&output));
}

#[test]
fn signals_are_handed_on_and_the_run_is_written() {
    let home = Home::empty();
    for (number, sent) in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT].into_iter().enumerate() {
        let script = format!("trap 'echo got {sent:?}; exit 3' TERM HUP INT; echo ready; while :; do sleep 0.01; done");
        let command = home.command(["run", "--name", "trapped", "--", "sh", "-c", &script]);
        // The launcher has a session of its own: no terminal could have sent the signal to its child. `child` is the launcher
        // itself: setsid starts another process only where it leads a group.
        let mut child = start(
            Command::new("setsid")
                .arg(command.get_program())
                .args(command.get_args())
                .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))),
        );
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        // The end of a whole job sends the signal to the collector too, which ends with the command all the same.
        kill(Pid::from_raw(info(&home, &format!("trapped@{}", number + 1)).pid as i32), sent).unwrap();
        signal(&child, sent);
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, format!("got {sent:?}\n"));
        assert_eq!(child.wait().unwrap().code(), Some(3), "{sent:?}");
        let info = info(&home, &format!("trapped@{}", number + 1));
        assert_eq!((info.state, info.exit_status), (RunState::Ended, Some(3)), "{sent:?}");
    }
}

#[test]
fn what_a_shell_has_ignored_stays_ignored_here_and_in_the_command() {
    let home = Home::empty();
    let fifo = home.path().join("go");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // As nohup does for one, and a script's `&` for the others.
    let shell = r#"trap "" HUP INT QUIT; exec "$0" "$@""#;
    let script = format!("grep SigIgn /proc/self/status; read line < {}; exit 4", fifo.display());
    let command = home.command(["run", "--name", "nohup", "--", "sh", "-c", &script]);
    let mut child = start(
        Command::new("sh")
            .args(["-c", shell])
            .arg(command.get_program())
            .args(command.get_args())
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))),
    );
    let line = first_line(child.stdout.as_mut().unwrap());
    let mask = u64::from_str_radix(line.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & 0b111, 0b111, "{line}");
    let run = info(&home, "nohup@1").pid as i32;
    for sent in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        signal(&child, sent);
        kill(Pid::from_raw(run), sent).unwrap();
    }
    std::fs::write(&fifo, "go\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let info = info(&home, "nohup@1");
    assert_eq!((info.state, info.exit_status), (RunState::Ended, Some(4)));
}

#[test]
fn a_limit_of_file_sizes_ends_neither_the_launcher_nor_the_command() {
    let home = Home::empty();
    // The log of the command is beyond the limit when it starts, and what the launcher prints goes there too.
    let log = std::fs::File::create(home.path().join("log")).unwrap();
    log.set_len(1 << 20).unwrap();
    let appended = std::fs::OpenOptions::new().append(true).open(home.path().join("log")).unwrap();
    let command = home.command(["run", "--name", "limited", "--", "sh", "-c", "grep Sig /proc/self/status; exit 4"]);
    let output = Command::new("sh")
        .args(["-c", r#"ulimit -f 1024; exec "$0" "$@""#])
        .arg(command.get_program())
        .args(command.get_args())
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stderr(appended)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{:?}", output.status);
    let masks = String::from_utf8(output.stdout).unwrap();
    let bit = 1_u64 << (Signal::SIGXFSZ as u64 - 1);
    for name in ["SigIgn:", "SigBlk:"] {
        let mask = masks.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        assert_eq!(u64::from_str_radix(mask.trim(), 16).unwrap() & bit, 0, "the command has the default: {masks}");
    }
    assert_eq!(log.metadata().unwrap().len(), 1 << 20, "nothing could be written there");
    let info = info(&home, "limited@1");
    assert_eq!((info.state, info.exit_status), (RunState::Ended, Some(4)));
}

#[test]
fn a_live_name_is_refused_and_answers_meanwhile() {
    let home = Home::empty();
    let fifo = home.path().join("go");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut child = start(&mut home.command(["run", "--name", "one", "--", "cat", fifo.to_str().unwrap()]));
    let said = first_line(child.stderr.as_mut().unwrap());
    assert!(said.contains("one@1") && said.contains("probe one query"), "{said}");
    assert_eq!(home.stdout(["one", "query", "SELECT 1 AS n", "--format", "csv"]), "n\n1\n");
    assert!(home.stdout(["list", "--with-agent"]).contains("no process"), "a collector without agents is listed");
    assert!(home.stdout(["runs", "--format", "ndjson"]).contains("\"state\":\"live\""));
    let second = home.probe(["run", "--name", "one", "true"]);
    assert_eq!(second.status.code(), Some(1), "{}", home.shown(&second));
    assert!(home.shown(&second).contains("live") && home.shown(&second).contains("hint:"));
    std::fs::write(Path::new(&fifo), "done").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn serve_says_where_it_is_and_ends_when_told_to() {
    let home = Home::empty();
    for sent in [Signal::SIGTERM, Signal::SIGINT] {
        let mut child = start(&mut home.command(["serve", "--name", "served"]));
        let said = first_line(child.stderr.as_mut().unwrap());
        assert!(said.starts_with("probe: run served@") && said.contains(".sock"), "{said}");
        assert_eq!(home.stdout(["served", "query", "SELECT 1 AS n", "--format", "csv"]), "n\n1\n");
        signal(&child, sent);
        let ended = child.wait().unwrap();
        assert_eq!((ended.code(), ended.signal()), (Some(0), None), "{sent:?}");
    }
    assert_eq!(info(&home, "served@2").state, RunState::Ended);
}

#[test]
fn serve_listens_where_it_is_told_to() {
    let home = Home::empty();
    let (socket, token) = (home.path().join("extra.sock"), home.path().join("laptop.token"));
    home.stdout(["token", "make", "laptop", "--scope", "query", "-o", token.to_str().unwrap()]);
    let (listen, token) = (format!("unix:{}", socket.display()), token.to_str().unwrap());
    // Any port: a port that is chosen beforehand may be taken by then.
    let mut child = start(&mut home.command(["serve", "--listen", &listen, "--listen", "127.0.0.1:0"]));
    let said = first_line(child.stderr.as_mut().unwrap());
    let (_, port) = said.split_once("127.0.0.1:").unwrap_or_else(|| panic!("{said}"));
    let digits = port.find(|c: char| !c.is_ascii_digit()).unwrap_or(port.len());
    let port = format!("127.0.0.1:{}", &port[..digits]);
    assert!(said.contains(&listen) && !port.ends_with(":0"), "{said}");
    until("it listens", || socket.exists());
    assert_eq!(home.stdout([&listen, "query", "SELECT 1 AS n", "--format", "csv"]), "n\n1\n");
    let over_tcp = [&port, "query", "SELECT 1 AS n", "--format", "csv", "--token-file", token];
    assert_eq!(home.stdout(over_tcp), "n\n1\n");
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let beyond = home.probe(["serve", "--name", "open", "--listen", "0.0.0.0:0"]);
    assert_eq!(beyond.status.code(), Some(2), "beyond this machine without TLS: {}", home.shown(&beyond));
    home.stdout(["token", "revoke", "laptop"]);
    let refused = home.probe(["serve", "--name", "open", "--listen", &port]);
    assert_eq!(refused.status.code(), Some(2), "TCP without a token: {}", home.shown(&refused));
}
