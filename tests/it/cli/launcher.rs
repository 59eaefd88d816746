//! `probe run` is a launcher: whatever happens to its collector, the command's streams, signals and exit status are its
//! own; whatever happens to the launcher, the collector ends when its agents have.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getsid};
use probe_store::runs::RunState;

use crate::cli::run::{info, until};
use crate::cli::support::Home;
use crate::collector::support::{FakeAgent, hello};

/// A command that prints "ready", and ends as its standard input says.
const COMMAND: &str = "echo ready; read status; echo \"told $status\"; exit \"$status\"";

/// A launcher whose command has said "ready".
struct Launcher {
    process: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Launcher {
    fn start(home: &Home, run: &str) -> Self {
        let mut command = home.command(["run", "--name", run, "--", "sh", "-c", COMMAND]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { process, stdout }
    }

    /// Lets the command end, and returns its exit status and the launcher's output.
    fn end(mut self, status: u8) -> (Option<i32>, String) {
        writeln!(self.process.stdin.take().unwrap(), "{status}").unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line, format!("told {status}\n"));
        // Not until all of standard error is closed: a collector that is stopped has it too.
        let ended = self.process.wait().unwrap();
        let mut said = String::new();
        let mut stderr = BufReader::new(self.process.stderr.take().unwrap());
        while !said.contains("hint: ") && stderr.read_line(&mut said).unwrap() > 0 {}
        (ended.code(), said)
    }
}

fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).unwrap();
}

#[test]
fn a_collector_that_dies_is_brought_back_and_the_command_does_not_notice() {
    let home = Home::empty();
    for (number, signal) in [Signal::SIGKILL, Signal::SIGABRT].into_iter().enumerate() {
        let run = format!("mortal@{}", number + 1);
        let launcher = Launcher::start(&home, "mortal");
        let first = info(&home, &run).pid;
        assert_ne!(first, launcher.process.id());
        send(first, signal);
        until("another collector", || info(&home, &run).pid != first);
        until("it answers", || home.probe(["mortal", "query", "SELECT 1"]).status.success());
        let (status, said) = launcher.end(7);
        assert_eq!(status, Some(7), "{said}");
        assert!(said.contains(&format!("the collector of run {run} was ended by {}", signal.as_str())), "{said}");
        let info = info(&home, &run);
        assert_eq!((info.state, info.exit_status), (RunState::Ended, Some(7)), "{said}");
        assert!(info.command.starts_with("sh -c 'echo ready; "), "{}", info.command);
    }
}

#[test]
fn a_collector_that_is_stopped_holds_nobody_up() {
    let home = Home::empty();
    let launcher = Launcher::start(&home, "stopped");
    let collector = info(&home, "stopped@1").pid;
    send(collector, Signal::SIGSTOP);
    let (status, said) = launcher.end(4);
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains(&format!("kill -CONT {collector} lets it write the run")), "{said}");
    assert_eq!(info(&home, "stopped@1").state, RunState::Live);
    send(collector, Signal::SIGCONT);
    until("the run is written", || info(&home, "stopped@1").state == RunState::Ended);
}

#[tokio::test]
async fn a_collector_outlives_its_launcher_until_its_agents_have_ended() {
    let home = Home::empty();
    let mut launcher = Launcher::start(&home, "orphan");
    let mut agent = FakeAgent::connect(&home.directories().socket_for("orphan@1"), hello("a")).await.unwrap();
    launcher.process.kill().unwrap();
    launcher.process.wait().unwrap();
    agent.send_steps(1, 0, 20).await;
    agent.acknowledged(1).await;
    assert_eq!(info(&home, "orphan@1").state, RunState::Live);
    agent.bye().await;
    until("the run is written", || info(&home, "orphan@1").state == RunState::Ended);
    assert_eq!((info(&home, "orphan@1").exit_status, info(&home, "orphan@1").agents), (None, 1));
    let count = ["orphan", "query", "SELECT COUNT(*) AS n FROM python.steps", "--format", "csv"];
    assert_eq!(home.stdout(count), "n\n20\n");
}

#[test]
fn a_run_that_ends_while_it_is_asked_is_read_from_its_directory() {
    let home = Home::recorded();
    let socket = home.directories().socket_for("gpt@1");
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    std::fs::set_permissions(socket.parent().unwrap(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    // The collector goes once the command has connected, and before it answers. Whoever only looks sends nothing.
    let collector = std::thread::spawn(move || {
        loop {
            let (mut connection, _) = listener.accept().unwrap();
            if connection.read(&mut [0; 24]).unwrap() > 0 {
                return drop(listener);
            }
        }
    });
    let count = ["gpt", "query", "SELECT COUNT(*) > 0 AS recorded FROM python.steps", "--format", "csv"];
    assert_eq!(home.stdout(count), "recorded\ntrue\n");
    collector.join().unwrap();
}

#[test]
fn the_collector_hears_nothing_of_the_terminal_and_goes_before_training_where_memory_runs_out() {
    let home = Home::empty();
    let command = "trap 'echo got it; exit 5' INT; echo ready; while :; do sleep 0.01; done";
    let mut terminal = home.terminal(200, 24, ["run", "--name", "typed", "--", "sh", "-c", command]);
    terminal.until("the command", |text| text.contains("ready"));
    let collector = info(&home, "typed@1").pid;
    assert_eq!(getsid(Some(Pid::from_raw(collector as i32))).unwrap().as_raw(), collector as i32);
    // The most there is: it adds all of the memory to what the collector has, and training can't have more than all of it.
    assert_eq!(std::fs::read_to_string(format!("/proc/{collector}/oom_score_adj")).unwrap().trim(), "1000");
    terminal.types("\x03");
    let (status, said) = terminal.end();
    assert_eq!((status, said.matches("got it").count()), (Some(5), 1), "{said}");
    assert_eq!(
        (info(&home, "typed@1").state, info(&home, "typed@1").exit_status),
        (RunState::Ended, Some(5)),
        "{said}"
    );
}

#[test]
fn the_collector_opens_as_many_files_as_it_may_and_the_command_as_many_as_before() {
    let home = Home::empty();
    let probe = home.command(["run", "--name", "files", "--", "sh", "-c", "ulimit -Sn; read line"]);
    // A program that calls select can't do with numbers above 1023, and agents take some each.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -Sn 512 && exec \"$0\" \"$@\""]).arg(probe.get_program()).args(probe.get_args());
    command.env_clear().envs(probe.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "512\n");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", info(&home, "files@1").pid)).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let [soft, hard] = [0, 1].map(|column| files.split_whitespace().nth(column).unwrap());
    assert!(soft == hard && soft != "512", "{files}");
    drop(process.stdin.take());
    process.wait().unwrap();
}
