//! `probe compare`: two runs whose steps are known, two windows of one run, and sides that cannot be compared.

use std::path::PathBuf;

use probe_proto::table::Time;
use probe_proto::tables::steps;
use probe_store::Store;

use crate::cli::live::Live;
use crate::cli::support::{Home, check};
use crate::sql::data::{Agent, START};

/// A run of two ranks. `seconds` says what a module takes in a step; rank 1 takes a tenth more. None is a module that
/// does not run.
struct Recipe<'a> {
    name: &'a str,
    steps: [i64; 2],
    /// The first steps in which the model is only called.
    calls: i64,
    modules: &'a [(&'a str, &'a str)],
    seconds: fn(&str, i64) -> f64,
}

/// A percent or two of noise, the same every time.
fn noise(step: i64) -> f64 {
    1.0 + 0.004 * ((step * 7 % 11) as f64 - 5.0)
}

fn record(home: &Home, recipe: &Recipe<'_>) -> PathBuf {
    let store = Store::new(1 << 30);
    for rank in 0..2 {
        let mut agent = Agent::new(rank);
        // A rank may be a step behind when a run ends.
        for step in 0..recipe.steps[rank as usize] {
            let share = 1.0 + 0.1 * f64::from(rank);
            let mut total = 0.0;
            let mut traces = Vec::new();
            for (module, stage) in recipe.modules {
                let seconds = (recipe.seconds)(module, step) * noise(step) * share;
                total += seconds;
                // In two calls, which add up.
                traces.extend((0..2).map(|_| agent.trace(step, Some(module), stage, seconds / 2.0)));
            }
            agent.send(&store, traces);
            let row = steps::Row {
                ts: Time(START + step * 1_000_000_000),
                duration: total + 0.001,
                data_time: 0.001,
                forward_time: total,
                other_time: 0.0,
                clock: agent.strings.id("host"),
                kind: Some(agent.strings.id(if step < recipe.calls { "call" } else { "optimizer" })),
                samples: Some(32),
                ..steps::Row::of_a_second(step)
            };
            agent.send(&store, [row]);
        }
    }
    let directory = home.record(recipe.name, |_| ());
    store.write(&directory, &[]).unwrap();
    directory
}

const BEFORE: Recipe<'_> = Recipe {
    name: "gpt@1",
    steps: [40, 41],
    calls: 0,
    modules: &[("attn", "forward"), ("mlp", "forward"), ("norm", "forward"), ("AdamW", "step")],
    seconds: |module, _| match module {
        "attn" => 0.010,
        "mlp" => 0.020,
        "norm" => 0.001,
        _ => 0.002,
    },
};

/// A run in which the attention is a fifth faster, and the norm is another module.
const AFTER: Recipe<'_> = Recipe {
    name: "gpt@2",
    steps: [30, 30],
    calls: 0,
    modules: &[("attn", "forward"), ("mlp", "forward"), ("rms_norm", "forward"), ("AdamW", "step")],
    seconds: |module, _| match module {
        "attn" => 0.008,
        "mlp" => 0.020,
        "rms_norm" => 0.0004,
        _ => 0.002,
    },
};

/// A run whose steps from 20 on take twice as long.
const SLOWING: Recipe<'_> = Recipe {
    name: "slowing@1",
    steps: [60, 60],
    calls: 0,
    modules: &[("attn", "forward")],
    seconds: |_, step| if step < 20 { 0.010 } else { 0.020 },
};

fn home() -> Home {
    let home = Home::empty();
    record(&home, &BEFORE);
    record(&home, &AFTER);
    record(&home, &SLOWING);
    home
}

#[test]
fn before_and_after_are_compared() {
    let home = home();
    check!(home, "compare", home.probe(["compare", "gpt@1", "gpt@2"]));
    check!(home, "compare_top", home.probe(["compare", "gpt@1", "gpt@2", "--top", "1", "--format", "csv"]));
    let twice = [(); 2].map(|()| home.stdout(["compare", "gpt@1", "gpt@2", "--format", "json"]));
    assert_eq!(twice[0], twice[1], "the same again, also what was drawn");
    let directory = home.directories().runs().join("gpt@1");
    let by_path = home.stdout(["compare", directory.to_str().unwrap(), "gpt", "--format", "json"]);
    assert_eq!(by_path, twice[0], "a directory is its run, and gpt the newest one");
}

#[test]
fn a_run_is_compared_with_itself_in_another_window() {
    let home = home();
    let words = ["compare", "slowing", "--steps", "..19", "--against", "30..49", "--format", "csv"];
    let csv = home.stdout(words);
    let attn: Vec<&str> = csv.lines().find(|line| line.starts_with("attn,")).unwrap().split(',').collect();
    // The mean over both ranks: 1.05 of rank 0's.
    assert!((attn[2].parse::<f64>().unwrap() - 10.5).abs() < 0.1, "{csv}");
    assert!((attn[5].parse::<f64>().unwrap() - 100.0).abs() < 2.0, "{csv}");
    assert_eq!(attn[8..], ["20", "20", "slower"], "{csv}");
    let same = home.stdout(["compare", "slowing", "--steps", "20..39", "--against", "40..59", "--format", "csv"]);
    assert!(same.lines().find(|line| line.starts_with("attn,")).unwrap().ends_with("within noise"), "{same}");
    let both = home.stdout(["compare", "slowing@1", "gpt@1", "--steps", "0..3", "--format", "csv"]);
    assert!(both.lines().find(|line| line.starts_with("attn,")).unwrap().ends_with(",4,4,too few steps"), "{both}");
}

#[test]
fn calls_before_training_are_not_compared_with_it() {
    let home = home();
    let seconds = |_: &str, step| if step < 20 { 0.001 } else { 0.010 };
    record(
        &home,
        &Recipe { name: "evaluated@1", steps: [30, 30], calls: 20, modules: &[("attn", "forward")], seconds },
    );
    let output = home.probe(["compare", "slowing@1", "evaluated@1", "--steps", "..29", "--format", "csv"]);
    let said = home.shown(&output);
    assert!(
        said.contains("steps 20..29 (10 of 2 processes, 10 with modules); 20 more that do not train are left out"),
        "{said}"
    );
    let inferred = home.stdout(["compare", "evaluated", "--steps", "..9", "--against", "10..19", "--format", "csv"]);
    assert!(inferred.contains(",10,10,"), "where nothing is trained, calls are compared: {inferred}");
}

#[test]
fn a_live_run_is_compared_with_a_recorded_one() {
    let live = Live::named(home(), "now@1");
    let output = live.home.probe(["compare", "gpt@1", "now", "--format", "csv"]);
    let said = live.home.shown(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("probe: B is now@1: steps 0..3 (4 of 2 processes, 4 with modules)"), "{said}");
    assert!(said.contains("layers.0,forward,,250.0,,,,,0,4,only in B"), "{said}");
    assert!(said.contains("\n,backward,,125.0,,,,,0,4,only in B"), "backward work of no module: {said}");
}

#[test]
fn what_can_t_be_compared_is_said() {
    let home = home();
    check!(home, "compare_one", home.probe(["compare", "gpt@1"]));
    check!(home, "compare_one_window", home.probe(["compare", "gpt@1", "--steps", "1..2"]));
    check!(home, "compare_after_endpoint", home.probe(["gpt@1", "compare", "gpt@2"]));
    check!(home, "compare_empty_window", home.probe(["compare", "gpt@1", "gpt@2", "--steps", "35..39"]));
    check!(home, "compare_wrong_window", home.probe(["compare", "gpt@1", "gpt@2", "--steps", "9..3"]));
    check!(home, "compare_no_such_run", home.probe(["compare", "gpt@1", "gtp"]));
    home.probe(["run", "--name", "empty", "true"]);
    check!(home, "compare_without_steps", home.probe(["compare", "gpt@1", "empty"]));
}
