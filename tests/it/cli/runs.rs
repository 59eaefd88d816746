//! `probe runs` and `probe runs rm`.

use std::fs;

use jiff::{SignedDuration, Timestamp};
use probe_common::run_name::RunName;
use probe_store::runs::{RunInfo, RunState};

use crate::cli::live::Live;
use crate::cli::support::{Home, check};
use crate::collector::support::Bench;

fn days_ago(days: i64) -> Timestamp {
    Timestamp::now().checked_sub(SignedDuration::from_hours(24 * days)).unwrap()
}

fn names(home: &Home) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(home.directories().runs())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn an_ended_a_lost_and_a_live_run_are_listed() {
    let live = Live::named(Home::recorded(), "now@1");
    let home = &live.home;
    home.record("lost@1", |info| {
        info.state = RunState::Live;
        info.started = "2026-01-02T00:00:00Z".parse().unwrap();
        info.agents = 0;
        info.ranks.clear();
        info.exit_status = None;
        info.ended = None;
    });
    home.record("now@1", |info| {
        info.state = RunState::Live;
        info.started = "2026-01-03T00:00:00Z".parse().unwrap();
        info.exit_status = None;
        info.ended = None;
    });
    let runs = home.stdout(["runs", "--format", "csv"]);
    let lines: Vec<Vec<&str>> = runs.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0].join(","), "run,state,started,seconds,last_step,ranks,exit_status,bytes,command");
    assert_eq!(lines[1][..7], ["gpt@1", "ended", "2026-01-01T00:00:00Z", "4.5", "3", "2", "0"]);
    assert_eq!(
        lines[2][..7],
        ["lost@1", "lost", "2026-01-02T00:00:00Z", "", "3", "2", ""],
        "what nobody knows is empty"
    );
    assert_eq!((lines[3][0], lines[3][1], lines[3][4], lines[3][5]), ("now@1", "live", "3", "3"), "as its agents say");
    assert!(lines[3][3].parse::<f64>().unwrap() > 0.0, "so far");
    for line in &lines[1..] {
        assert!(line[7].parse::<u64>().unwrap() > 1000, "{runs}");
        assert_eq!(line[8], "torchrun --nproc-per-node 2 train.py");
    }
}

/// The command may open fewer files here than it would if it had a file of each lost run open at once.
#[tokio::test]
async fn a_thousand_runs_of_which_a_hundred_are_lost_are_listed_with_little() {
    // The journal of a collector that had written none of its files when it died.
    let bench = Bench::start().await;
    for rank in 0..2 {
        let mut agent = bench.rank(rank, 2).await;
        agent.send_steps(1, 0, 50).await;
        agent.send_steps(2, 50, 7 + i64::from(rank)).await;
        agent.acknowledged(2).await;
    }
    let home = Home::empty();
    let mut ended = RunInfo::begin(&RunName::parse("gpt@1").unwrap(), "python train.py");
    (ended.state, ended.ended) = (RunState::Ended, Some(ended.started));
    let run = |number: u32, change: &dyn Fn(&mut RunInfo)| {
        let name = RunName::parse(&format!("gpt@{number}")).unwrap();
        let directory = home.directories().runs().join(name.to_string());
        fs::create_dir_all(&directory).unwrap();
        let mut info = RunInfo { run: name.to_string(), ..ended.clone() };
        change(&mut info);
        // Not synced, as its own way of writing it is a thousand times.
        fs::write(directory.join("run.json"), serde_json::to_vec(&info).unwrap()).unwrap();
        directory
    };
    for number in 1..=900 {
        run(number, &|info| (info.last_step, info.bytes) = (Some(4), Some(54_321)));
    }
    let written = bench.directories.runs().join("gpt@1/journal");
    for number in 901..=1000 {
        let journal = run(number, &|info| info.state = RunState::Live).join("journal");
        fs::create_dir(&journal).unwrap();
        for file in fs::read_dir(&written).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), journal.join(file.file_name())).unwrap();
        }
    }
    let probe = home.command(["runs", "--format", "csv"]);
    // KiB of addresses, of which every thread takes its stack, and open files.
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -v 1500000; ulimit -n 40; exec \"$@\"", "sh"]);
    limited.arg(probe.get_program()).args(probe.get_args()).env_clear();
    limited.envs(probe.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().unwrap();
    assert!(output.status.success(), "{}", home.shown(&output));
    let runs = String::from_utf8(output.stdout).unwrap();
    let columns = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<Vec<String>> = runs.lines().skip(1).map(columns).collect();
    let of = |state: &str| lines.iter().filter(|line| line[1] == state).cloned().collect::<Vec<_>>();
    let (ended, lost) = (of("ended"), of("lost"));
    assert_eq!((ended.len(), lost.len()), (900, 100), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(ended.iter().all(|line| (&*line[4], &*line[7]) == ("4", "54321")), "{:?}", ended[0]);
    assert!(lost.iter().all(|line| (&*line[4], &*line[5]) == ("57", "2")), "{:?}", lost[0]);
}

#[test]
fn named_runs_are_removed() {
    let home = Home::recorded();
    for name in ["gpt@2", "other@1", "keep@1"] {
        home.record(name, |_| ());
    }
    let dry = home.probe(["runs", "rm", "gpt@1", "other", "--dry-run"]);
    assert_eq!((dry.status.code(), names(&home).len()), (Some(0), 4), "{}", home.shown(&dry));
    let output = home.probe(["runs", "rm", "gpt@1", "other", "gpt@1"]);
    let said = home.shown(&output);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b""[..]), "{said}");
    assert!(said.contains("probe: removed gpt@1 (") && said.contains("KiB), which ended 2026-01-01"), "{said}");
    assert!(said.contains("probe: 2 runs removed, which freed "), "{said}");
    assert_eq!(names(&home), ["gpt@2", "keep@1"]);
}

#[test]
fn a_wrong_name_removes_nothing() {
    let home = Home::recorded();
    home.record("gpt@2", |_| ());
    home.record("other@1", |_| ());
    check!(home, "rm_several", home.probe(["runs", "rm", "other", "gpt"]));
    check!(home, "rm_unknown", home.probe(["runs", "rm", "gpt@1", "otter@1"]));
    check!(home, "rm_nothing_named", home.probe(["runs", "rm"]));
    assert_eq!(names(&home).len(), 3);
}

#[test]
fn a_run_that_may_be_live_stays() {
    let live = Live::named(Home::recorded(), "now@1");
    let home = &live.home;
    let long_ago = |info: &mut probe_store::runs::RunInfo| {
        info.state = RunState::Live;
        info.started = "2020-01-01T00:00:00Z".parse().unwrap();
        info.ended = None;
    };
    home.record("now@1", long_ago);
    home.record("there@1", |info| {
        long_ago(info);
        info.host = "another-machine".into();
    });
    check!(home, "rm_live", home.probe(["runs", "rm", "gpt@1", "now@1"]));
    check!(home, "rm_elsewhere", home.probe(["runs", "rm", "there@1"]));
    assert_eq!(names(home), ["gpt@1", "now@1", "there@1"]);
    // The name is held, and the socket is not there: a collector that is just beginning or ending.
    home.record("held@1", long_ago);
    let lock = fs::File::create(home.directories().runtime.join("held.lock")).unwrap();
    lock.lock().unwrap();
    let output = home.probe(["runs", "rm", "held@1"]);
    assert!(home.shown(&output).contains("held@1 is just beginning or ending"), "{}", home.shown(&output));
    drop(lock);
    let output = home.probe(["runs", "rm", "held@1"]);
    assert_eq!(output.status.code(), Some(0), "{}", home.shown(&output));
    assert!(home.shown(&output).contains("which was begun 2020-01-01 and lost"), "{}", home.shown(&output));
}

#[test]
fn old_runs_are_removed_by_their_end() {
    let home = Home::empty();
    for (name, days) in [("old@1", 8), ("older@1", 30), ("new@1", 6)] {
        home.record(name, |info| info.ended = Some(days_ago(days)));
    }
    // The run began long ago, and was written to just now.
    home.record("lost@1", |info| {
        info.state = RunState::Live;
        info.started = days_ago(100);
        info.ended = None;
    });
    let output = home.probe(["runs", "rm", "--older-than", "7d", "--dry-run"]);
    let said = home.shown(&output);
    assert!(
        said.contains("would remove old@1") && said.contains("probe: 2 runs would be removed, which would free "),
        "{said}"
    );
    assert_eq!(names(&home).len(), 4);
    assert!(home.probe(["runs", "rm", "--older-than", "7d"]).status.success());
    assert_eq!(names(&home), ["lost@1", "new@1"]);
    check!(home, "rm_nothing_old", home.probe(["runs", "rm", "--older-than", "7d"]));
    check!(home, "rm_both", home.probe(["runs", "rm", "--older-than", "7d", "new@1"]));
    check!(home, "rm_wrong_age", home.probe(["runs", "rm", "--older-than", "old"]));
}

#[test]
fn what_an_earlier_removal_left_goes_too() {
    let home = Home::recorded();
    let left = home.directories().runs().join(".removing-gone@1-1");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("rows.parquet"), "x").unwrap();
    assert!(!home.stdout(["runs"]).contains("gone@1"));
    assert!(home.probe(["runs", "rm", "gpt"]).status.success());
    assert_eq!(names(&home), [""; 0]);
}
