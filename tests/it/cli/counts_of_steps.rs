//! Reports over ranks that count their own steps from different starts: the same steps are compared, or the report says that they
//! are not.

use std::collections::BTreeSet;
use std::sync::Arc;

use probe_proto::table::Time;
use probe_proto::tables::{nccl_trace, steps};
use probe_query::QueryEngine;
use probe_store::Store;
use serde_json::Value;

use crate::cli::live::Live;
use crate::cli::support::Home;
use crate::sql::data::{Agent, START, system};

const STEPS: i64 = 120;
/// Rank 1 was attached to then.
const ATTACHED: i64 = 30;

/// Rank 1 takes longer for its forward pass, for which rank 0 waits. `own` says what rank 1 calls a step.
fn stored(own: impl Fn(i64) -> i64) -> Arc<Store> {
    let store = Store::new(1 << 30);
    for rank in 0..2 {
        let mut agent = Agent::new(rank);
        let (clock, is_slow) = (agent.strings.id("host"), rank == 1);
        for at in (if is_slow { ATTACHED } else { 0 })..STEPS {
            let (number, ts) = (if is_slow { own(at) } else { at }, Time(START + at * 1_000_000_000));
            let noise = 1.0 + 0.004 * ((at * 7 % 11) as f64 - 5.0);
            let row = steps::Row {
                ts,
                duration: 0.02 * noise,
                forward_time: if is_slow { 0.015 } else { 0.005 } * noise,
                backward_time: 0.004 * noise,
                comm_time: if is_slow { 0.001 } else { 0.011 } * noise,
                other_time: 0.0,
                clock,
                ..steps::Row::of_a_second(number)
            };
            agent.send(&store, [row]);
            let issued = agent.collective(number, at, "all_reduce");
            agent.send(&store, [nccl_trace::Row { ts, ..issued }]);
        }
    }
    store
}

fn record(own: impl Fn(i64) -> i64) -> Home {
    let home = Home::empty();
    stored(own).write(&home.record("gpt@1", |_| ()), &system()).unwrap();
    home
}

/// The window of `probe diagnose`, and what it says of the rule that compares ranks, after where it says so.
fn diagnosed(home: &Home) -> (Value, String) {
    let mut answer: Value = serde_json::from_str(&home.stdout(["gpt", "diagnose", "--json"])).unwrap();
    let mut said = String::new();
    for (list, key) in [("findings", "says"), ("ruled_out", "why"), ("not_decided", "why")] {
        for of in answer[list].as_array().unwrap().iter().filter(|of| of["rule"] == "rank-slow") {
            said += &format!("{list}: {}", of[key].as_str().unwrap());
        }
    }
    (answer["window"].take(), said)
}

/// What `probe compare` says of A, and the steps that `probe export --steps 40` draws with what it says.
fn reported(home: &Home) -> (String, BTreeSet<String>, String) {
    let compared = home.probe(["compare", "gpt", "--steps", "40..79", "--against", "80..119"]);
    let path = home.path().join("drawn.json");
    let exported = home.probe(["gpt", "export", "--steps", "40..40", "-o", path.to_str().unwrap()]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let drawn: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let names = drawn["traceEvents"].as_array().unwrap().iter().filter_map(|event| event["name"].as_str());
    let drawn = names.filter(|name| name.starts_with("step ")).map(str::to_owned).collect();
    (text(&compared.stderr), drawn, text(&exported.stderr))
}

#[test]
fn steps_that_ranks_number_differently_are_compared_by_their_collectives() {
    let home = record(|at| at - ATTACHED + 1);
    let (window, said) = diagnosed(&home);
    assert!(said.starts_with("findings: rank 1 takes longer than the others"), "{said}");
    assert_eq!((&window["first"], &window["last"], &window["ranks"]), (&30.into(), &119.into(), &2.into()), "{window}");
    let (compared, drawn, exported) = reported(&home);
    assert!(compared.contains("A is gpt@1: steps 40..79 (40 of 2 processes"), "{compared}");
    assert_eq!(drawn, ["step 40".to_owned(), "step 11".to_owned()].into());
    assert!(!compared.contains("left out") && !exported.contains("not known"), "{compared}{exported}");
}

#[test]
fn steps_of_which_it_is_not_known_which_are_the_same_are_left_out_and_that_is_said() {
    // Rank 1 counts a step too many in the middle.
    let home = record(|at| at - ATTACHED + i64::from(at > 70));
    let why = "rank 1: it is not known which of its steps are those of the other ranks (python.step_offsets)";
    let (window, said) = diagnosed(&home);
    assert_eq!(said, format!("not_decided: {why}"));
    assert_eq!((&window["ranks"], &window["ranks_left_out"][0]), (&1.into(), &1.into()), "{window}");
    let (compared, _, exported) = reported(&home);
    assert!(compared.contains(&format!("A: left out: {why}")), "{compared}");
    assert!(exported.contains(&format!("{why}; they are chosen by their own numbers")), "{exported}");
}

/// The lines of ranks on the page of `probe hang`, which has 30 steps of each rank's own, with what it says of them; and of
/// the rows `step` and `shared_step`.
fn hang(own: impl Fn(i64) -> i64) -> (Vec<String>, String, Vec<(Value, Value)>) {
    let live = Live::of(Home::empty(), "gpt@1", QueryEngine::new(stored(own), system()).unwrap());
    let page = live.home.stdout(["gpt", "hang"]);
    let ranks = page.lines().filter(|line| line.starts_with("rank ") && line.contains("ago"));
    let ranks = ranks.map(|line| line.split("  ").take(2).collect::<Vec<_>>().join(": ")).collect();
    let said = page.lines().find(|line| line.contains("not known")).unwrap_or_default().to_owned();
    let rows: Value = serde_json::from_str(&live.home.stdout(["gpt", "hang", "--format", "json"])).unwrap();
    let rows = rows.as_array().unwrap().iter().map(|row| (row["step"].clone(), row["shared_step"].clone())).collect();
    (ranks, said, rows)
}

#[test]
fn a_hang_has_one_count_of_steps_or_says_that_none_is_known() {
    let (ranks, said, rows) = hang(|at| at - ATTACHED + 1);
    assert_eq!(ranks, ["rank 0: 30", "rank 1: 59"]);
    assert_eq!((said.as_str(), rows), ("", vec![(30.into(), 30.into()), (30.into(), 59.into())]));
    let (ranks, said, rows) = hang(|at| at - ATTACHED + i64::from(at > 70));
    assert_eq!(ranks, ["rank 0: 30", "rank 1: 30 of its own"]);
    assert!(said.starts_with("rank 1: it is not known which of its steps are those of the other ranks"), "{said}");
    assert_eq!(rows, [(30.into(), 30.into()), (30.into(), Value::Null)]);
}
