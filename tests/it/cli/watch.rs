//! `query --watch` on a terminal and into a pipe. Frames are waited for, never timed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::live::Live;
use crate::cli::support::{Home, check};

/// A query whose answer differs each time.
const NOW: &str = "SELECT now() AS at, COUNT(*) AS steps FROM python.steps";

#[test]
fn a_terminal_is_redrawn_until_ctrl_c() {
    let live = Live::start();
    let mut terminal = live.home.terminal(80, 24, ["gpt", "query", "--watch", "50ms", NOW]);
    let frames = |text: &str| text.matches("Every 50ms: SELECT now() AS at").count();
    terminal.until("three frames", |text| frames(text) >= 3);
    terminal.types("\x03");
    let (status, seen) = terminal.end();
    assert_eq!(status, Some(0), "{seen}");
    assert_eq!(seen.matches("\x1b[2J").count(), 1, "cleared once, then drawn over: {seen:?}");
    assert!(seen.contains("gpt@1  20") && seen.contains("steps"), "{seen}");
    assert!(!seen.contains("error"), "{seen}");
}

#[test]
fn a_terminal_gets_no_more_lines_than_it_has() {
    let home = Home::recorded();
    let sql = "SELECT step, module FROM python.torch_trace";
    let mut terminal = home.terminal(60, 12, ["gpt", "query", "--watch", "50ms", sql]);
    terminal.until("two frames", |text| text.matches("Every").count() >= 2);
    terminal.types("\x03");
    let (status, seen) = terminal.end();
    assert_eq!(status, Some(0), "{seen}");
    // The first one: Ctrl-C throws away what the terminal has not shown yet of the last.
    let frame = seen.split("\x1b[H").nth(1).unwrap();
    assert!(frame.lines().count() <= 12, "{frame}");
    assert!(frame.contains("more than this terminal has lines for"), "{frame}");
}

#[test]
fn a_pipe_gets_one_answer_after_another() {
    let live = Live::start();
    for (format, header) in [("ndjson", None), ("csv", Some("at,steps\n"))] {
        let mut command = live.home.command(["gpt", "query", "--watch=20ms", NOW, "--format", format]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = || {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            line
        };
        if let Some(header) = header {
            assert_eq!(line(), header);
        }
        let lines = [line(), line(), line()];
        assert!(lines[0] != lines[1] && lines[1] != lines[2], "{lines:?}");
        assert!(lines.iter().all(|line| line.contains("20") && line.contains('8')), "no second header: {lines:?}");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    }
}

#[test]
fn a_reader_that_has_gone_ends_it() {
    let live = Live::start();
    let mut command = live.home.command(["gpt", "query", "--watch=20ms", NOW]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
}

#[test]
fn a_collector_that_goes_away_ends_it() {
    let mut live = Live::start();
    let mut command = live.home.command(["gpt", "query", "--watch=20ms", NOW, "--format", "csv"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..2 {
        line.clear();
        stdout.read_line(&mut line).unwrap();
    }
    assert!(line.contains('8'), "{line}");
    live.end();
    // Reading on: a full pipe would keep it from asking again.
    std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    let output = child.wait_with_output().unwrap();
    check!(live.home, "watch_collector_gone", output);
}

#[test]
fn what_can_t_be_watched_is_said() {
    let home = Home::recorded();
    check!(home, "watch_wrong_sql", home.probe(["gpt", "query", "--watch", "SELECT modul FROM python.torch_trace"]));
    check!(home, "watch_wrong_interval", home.probe(["gpt", "query", "--watch", "often", "SELECT 1"]));
    check!(home, "watch_a_file", home.probe(["gpt", "query", "--watch", "1s", "SELECT 1", "--format", "parquet"]));
    let output = home.probe(["gpt", "query", "--watch", "1s", "SELECT 1", "-o", "x.csv"]);
    assert_eq!(output.status.code(), Some(2), "{}", home.shown(&output));
}
