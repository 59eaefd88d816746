//! Warnings that a collector finds by itself.

use std::process::Stdio;

use probe_store::runs::{RunInfo, RunState};

use crate::cli::diagnosed_runs::{STEPS, logs, record};
use crate::cli::run::until;
use crate::cli::support::Home;

const EVENTS: &str = "SELECT severity, step, message, arrow_typeof(details) FROM probe.events WHERE kind = 'finding'";

#[test]
fn a_collector_notes_a_new_warning() {
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, |_| (), logs("train_loss", |step| if step < 90 { 1.0 } else { f64::NAN }));
    let directory = home.run_directory();
    let info = RunInfo { state: RunState::Lost, ended: None, ..RunInfo::read(&directory).unwrap() };
    info.write(&directory).unwrap();
    let mut serve = home.command(["serve", "--resume", "gpt@1"]);
    let mut serve = serve.env("PROBE_DIAGNOSE_EVERY", "1s").stderr(Stdio::null()).spawn().unwrap();
    let words = ["gpt@1", "query", "--format", "csv", EVENTS];
    let mut noted = String::new();
    until("a finding", || {
        noted = String::from_utf8(home.probe(words).stdout).unwrap();
        noted.lines().count() > 1
    });
    serve.kill().unwrap();
    serve.wait().unwrap();
    assert!(noted.lines().nth(1).unwrap().starts_with("warning,119,"), "{noted}");
    assert!(
        noted.contains("train_loss is not finite in 30 of 120 values, first seen in step 90 (finite in step 89)"),
        "{noted}"
    );
    // Nothing of the machine's own is a warning here, and its own queries are written down nowhere.
    assert_eq!(noted.lines().count(), 2, "{noted}");
    let asked =
        home.stdout(["gpt@1", "query", "--format", "csv", "SELECT sql FROM probe.queries WHERE sql LIKE '%isnan%'"]);
    assert_eq!(asked.lines().count(), 1, "{asked}");
}

#[test]
fn how_often_is_said_in_words() {
    let home = Home::empty();
    let refused = home.command(["serve"]).env("PROBE_DIAGNOSE_EVERY", "10ms").output().unwrap();
    let shown = home.shown(&refused);
    assert!(
        shown.starts_with("exit 2\n") && shown.contains("hint: PROBE_DIAGNOSE_EVERY=1s is the shortest"),
        "{shown}"
    );
}

/// A rule that takes a while.
const LONG_RULE: &str = "-- rule: long\n-- family: host\n-- kind: fact\n-- says: it took a while\n-- do: wait\n\
                         SELECT 'a while' AS seen FROM (SELECT SUM(value % 7) AS sum FROM generate_series(1, 10000000)) WHERE sum > 0";

#[test]
fn a_run_that_ends_while_it_is_diagnosed_is_diagnosed_by_its_recording() {
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, |_| (), logs("train_loss", |step| if step < 90 { 1.0 } else { f64::NAN }));
    let info = RunInfo { state: RunState::Lost, ended: None, ..RunInfo::read(&home.run_directory()).unwrap() };
    info.write(&home.run_directory()).unwrap();
    let rules = home.path().join("rules");
    std::fs::create_dir(&rules).unwrap();
    std::fs::write(rules.join("long.sql"), LONG_RULE).unwrap();
    let mut serve = home.command(["serve", "--resume", "gpt@1"]);
    let mut serve = serve.env("PROBE_DIAGNOSE_EVERY", "off").stderr(Stdio::null()).spawn().unwrap();
    let answers =
        "SELECT COUNT(*) AS n FROM probe.queries WHERE sql LIKE '%python.steps%' AND sql NOT LIKE '%probe.queries%'";
    let asked = ["gpt@1", "query", "--format", "csv", answers];
    until("the collector", || home.probe(asked).stdout == b"n\n0\n" && home.directories().socket_for("gpt@1").exists());
    let diagnose = home
        .command(["gpt@1", "diagnose", "--json", "--no-ask", "--rules", rules.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the diagnosis to begin", || home.probe(asked).stdout != b"n\n0\n");
    serve.kill().unwrap();
    serve.wait().unwrap();
    let output = diagnose.wait_with_output().unwrap();
    let shown = home.shown(&output);
    assert!(
        output.status.success() && shown.contains("the collector has ended meanwhile, so the run is read again"),
        "{shown}"
    );
    assert!(shown.contains("train_loss is not finite") && shown.contains("it took a while"), "{shown}");
}
