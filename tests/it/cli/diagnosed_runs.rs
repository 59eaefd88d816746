//! Runs that tests of `probe diagnose` record, and what it says of them.

use std::collections::BTreeMap;

use probe_proto::table::Time;
use probe_proto::tables::{metrics, overhead, pauses, process_metrics, steps};
use probe_store::Store;
use serde_json::Value;

use crate::cli::support::Home;
use crate::sql::data::{Agent, START};

pub(super) const STEPS: i64 = 120;

/// Records a run of two ranks whose steps take 16 ms. `change` edits each step, and `more` records other rows.
pub(super) fn record(
    home: &Home,
    name: &str,
    steps: i64,
    change: impl Fn(&mut steps::Row),
    more: impl Fn(&mut Agent, &Store),
) {
    record_ranks(home, name, steps, |_, row| change(row), more);
}

/// Records a run of two ranks whose steps take 16 ms. `change` edits each step of a rank, and `more` records other rows.
pub(super) fn record_ranks(
    home: &Home,
    name: &str,
    steps: i64,
    change: impl Fn(i32, &mut steps::Row),
    more: impl Fn(&mut Agent, &Store),
) {
    record_some(home, name, 2, steps, change, more);
}

/// As `record_ranks`, for so many ranks.
pub(super) fn record_some(
    home: &Home,
    name: &str,
    ranks: i32,
    steps: i64,
    change: impl Fn(i32, &mut steps::Row),
    more: impl Fn(&mut Agent, &Store),
) {
    let store = Store::new(1 << 30);
    steps_of(&store, ranks, steps, change, more);
    store.write(&home.record(name, |_| ()), &[]).unwrap();
}

/// Puts the rows of such a run into `store`.
pub(super) fn steps_of(
    store: &Store,
    ranks: i32,
    steps: i64,
    change: impl Fn(i32, &mut steps::Row),
    more: impl Fn(&mut Agent, &Store),
) {
    for rank in 0..ranks {
        let mut agent = Agent::new(rank);
        steps_of_agent(&mut agent, store, steps, |row| change(rank, row));
        more(&mut agent, store);
    }
}

/// Puts the steps of one process into `store`, which take 16 ms. `change` edits each.
pub(super) fn steps_of_agent(agent: &mut Agent, store: &Store, steps: i64, change: impl Fn(&mut steps::Row)) {
    let rank = i64::from(agent.identity.rank.unwrap_or(0));
    for step in 0..steps {
        let noise = 1.0 + 0.004 * (((step + rank) * 7 % 11) as f64 - 5.0);
        let mut row = steps::Row {
            ts: Time(START + step * 1_000_000_000),
            data_time: 0.0005 * noise,
            forward_time: 0.005 * noise,
            backward_time: 0.008 * noise,
            optimizer_time: 0.001 * noise,
            comm_time: 0.001,
            other_time: 0.0005,
            clock: agent.strings.id("host"),
            micro_steps: 4,
            cpu_time: Some(0.015),
            run_delay: Some(0.0),
            gc_time: Some(0.0),
            ..steps::Row::of_a_second(step)
        };
        change(&mut row);
        row.duration = row.data_time + row.forward_time + row.backward_time + row.optimizer_time;
        row.duration += row.comm_time + row.other_time;
        row.duration += row.validation_time.unwrap_or(0.0) + row.checkpoint_time.unwrap_or(0.0);
        agent.send(store, [row]);
    }
}

/// The answers of some rules, separated by commas, for such a run: found, silent or open. Each rule takes its time in a debug build.
pub(super) fn of_rules(
    rules: &str,
    steps: i64,
    change: impl Fn(&mut steps::Row),
    more: impl Fn(&mut Agent, &Store),
) -> BTreeMap<String, String> {
    let home = Home::empty();
    record(&home, "gpt@1", steps, change, more);
    said(&home, ["gpt", "diagnose", "--json", "--rule", rules])
}

/// The answer of one rule for such a run.
pub(super) fn of_rule(
    rule: &str,
    steps: i64,
    change: impl Fn(&mut steps::Row),
    more: impl Fn(&mut Agent, &Store),
) -> String {
    let home = Home::empty();
    record(&home, "gpt@1", steps, change, more);
    said(&home, ["gpt", "diagnose", "--json", "--rule", rule]).remove(rule).unwrap_or_default()
}

#[track_caller]
pub(super) fn begins(said: &str, begin: &str) {
    assert!(said.starts_with(begin), "{said}, and not {begin}");
}

#[track_caller]
pub(super) fn advises(said: &str, remedy: &str) {
    let given = said.split_once("; do: ").map_or("nothing", |(_, given)| given);
    assert!(given.starts_with(remedy), "{said}, and not {remedy}");
}

/// The answer of each rule, from the JSON of a diagnosis; a finding ends with its remedy.
pub(super) fn said<const N: usize>(home: &Home, words: [&str; N]) -> BTreeMap<String, String> {
    let answer: Value = serde_json::from_str(&home.stdout(words)).unwrap();
    let mut said = BTreeMap::new();
    for (list, key, what) in
        [("findings", "says", "found"), ("ruled_out", "why", "silent"), ("not_decided", "why", "open")]
    {
        for of in answer[list].as_array().unwrap() {
            let text = |key: &str| of[key].as_str().unwrap().to_owned();
            // A finding takes precedence over another subject of the same rule without a finding.
            let remedy = of["remedy"].as_str().map(|remedy| format!("; do: {remedy}")).unwrap_or_default();
            said.entry(text("rule")).or_insert_with(|| format!("{what}: {}{remedy}", text(key)));
        }
    }
    said
}

#[track_caller]
pub(super) fn says(said: &BTreeMap<String, String>, rule: &str, begins: &str) {
    let found = said.get(rule).map(String::as_str).unwrap_or("nothing");
    assert!(found.starts_with(begins), "{rule}: {found}, and not {begins}; {said:#?}");
}

pub(super) fn nothing(_: &mut Agent, _: &Store) {}

/// Collections of 0.8 ms in two parts of each step, whose time is in the steps.
pub(super) fn garbage_collections(agent: &mut Agent, store: &Store) {
    let kind = agent.strings.id("garbage collection");
    let parts = ["forward", "other"].map(|part| agent.strings.id(part));
    let pause = |step: i64, part| pauses::Row {
        step,
        ts: Time(START + step * 1_000_000_000),
        kind,
        part,
        duration: 0.0008,
        generation: Some(2),
        collected: Some(0),
        uncollectable: Some(0),
        compile_id: None,
        thread: 1,
    };
    agent.send(store, (0..STEPS).flat_map(|step| parts.map(|part| pause(step, part))));
}

/// A row of `process.metrics` a step, of a second each, in which `change` makes something of its number.
pub(super) fn each_second(change: impl Fn(i64, &mut process_metrics::Row)) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let row = |agent: &mut Agent, step| {
            let mut row = process_metrics::Row { step, ..agent.metrics(step) };
            change(step, &mut row);
            row
        };
        let rows: Vec<_> = (0..STEPS).map(|step| row(agent, step)).collect();
        agent.send(store, rows);
    }
}

/// A run whose steps log `value` under `name`.
pub(super) fn logs(name: &'static str, value: impl Fn(i64) -> f64) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let name = agent.strings.id(name);
        let ts = |step| Time(START + step * 1_000_000_000);
        let row = |step| metrics::Row { step, ts: ts(step), name, value: Some(value(step)), reason: None };
        agent.send(store, (0..STEPS).map(row));
    }
}

/// Compilations of frame 3 in these steps, the first of number `first`.
pub(super) fn compiles(steps: &[i64], first: i64) -> impl Fn(&mut Agent, &Store) {
    let steps = steps.to_vec();
    move |agent, store| {
        let (kind, part) = (agent.strings.id("compilation"), agent.strings.id("forward"));
        let pause = |agent: &mut Agent, (number, step): (i64, &i64)| pauses::Row {
            step: *step,
            ts: Time(START + step * 1_000_000_000),
            kind,
            part,
            duration: 0.5,
            generation: None,
            collected: None,
            uncollectable: None,
            compile_id: Some(agent.strings.id(&format!("3/{number}"))),
            thread: 1,
        };
        let rows: Vec<_> = (first..).zip(&steps).map(|of| pause(agent, of)).collect();
        agent.send(store, rows);
    }
}

/// What recording costs in a step, by its own reckoning (s).
pub(super) fn recording_cost(step: i64, cost: f64) -> overhead::Row {
    overhead::Row {
        ts: Time(START + step * 1_000_000_000),
        step,
        budget: 0.01,
        detail_stride: 1,
        step_duration: Some(0.016),
        events: Some(100.0),
        events_without_detail: Some(10.0),
        event_cost: 1e-7,
        node_cost: 0.0,
        estimated_cost: Some(cost),
        estimated_share: Some(cost / 0.016),
        measured_ratio: None,
        measured_low: None,
        measured_high: None,
        measured_pairs: 0,
        ring_bytes: 0,
        buffer_bytes: 0,
        string_bytes: 0,
        sender_cpu: None,
    }
}
