//! `probe run` is a launcher: whatever happens to its collector, the command's streams, signals and exit status are its
//! own; whatever happens to the launcher, the collector ends when its agents have.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getsid};
use probe_store::runs::State;

use crate::cli::run::{info, until};
use crate::cli::support::Home;
use crate::collector::support::{FakeAgent, hello};

/// Says "ready", and ends as it is told on its standard input.
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

    /// Lets the command end, and gives its exit status and what the launcher said.
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
        assert_eq!((info.state, info.exit_status), (State::Ended, Some(7)), "{said}");
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
    assert_eq!(info(&home, "stopped@1").state, State::Live);
    send(collector, Signal::SIGCONT);
    until("the run is written", || info(&home, "stopped@1").state == State::Ended);
}

#[tokio::test]
async fn a_collector_outlives_its_launcher_until_its_agents_have_ended() {
    let home = Home::empty();
    let mut launcher = Launcher::start(&home, "orphan");
    let mut agent = FakeAgent::connect(&home.places().socket_for("orphan@1"), hello("a")).await.unwrap();
    launcher.process.kill().unwrap();
    launcher.process.wait().unwrap();
    agent.send_steps(1, 0, 20).await;
    agent.acknowledged(1).await;
    assert_eq!(info(&home, "orphan@1").state, State::Live);
    agent.bye().await;
    until("the run is written", || info(&home, "orphan@1").state == State::Ended);
    assert_eq!((info(&home, "orphan@1").exit_status, info(&home, "orphan@1").agents), (None, 1));
    let count = ["orphan", "query", "SELECT COUNT(*) AS n FROM python.steps", "--format", "csv"];
    assert_eq!(home.stdout(count), "n\n20\n");
}

#[test]
fn the_collector_hears_nothing_of_the_terminal_and_goes_before_training_where_memory_runs_out() {
    let home = Home::empty();
    let command = "trap 'echo got it; exit 5' INT; echo ready; while :; do sleep 0.01; done";
    let mut terminal = home.terminal(200, 24, ["run", "--name", "typed", "--", "sh", "-c", command]);
    terminal.until("the command", |text| text.contains("ready"));
    let collector = info(&home, "typed@1").pid;
    assert_eq!(getsid(Some(Pid::from_raw(collector as i32))).unwrap().as_raw(), collector as i32);
    let score = |pid: u32| -> i32 {
        std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
    };
    assert_eq!(score(collector), (score(std::process::id()) + 500).min(1000));
    terminal.types("\x03");
    let (status, said) = terminal.end();
    assert_eq!((status, said.matches("got it").count()), (Some(5), 1), "{said}");
    assert_eq!((info(&home, "typed@1").state, info(&home, "typed@1").exit_status), (State::Ended, Some(5)), "{said}");
}
