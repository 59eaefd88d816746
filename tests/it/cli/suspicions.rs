//! Answers of `probe diagnose` about one suspected cause, against a healthy run, and after a fix.

use probe_proto::table::Time;
use probe_proto::tables::{copies, steps, torch_trace};
use probe_store::Store;
use serde_json::Value;

use super::diagnosed_runs::{STEPS, compiles, garbage_collections, nothing, record, said, says};
use crate::cli::support::Home;
use crate::sql::data::{Agent, START};

pub(super) fn ask<const N: usize>(home: &Home, words: [&str; N]) -> Value {
    serde_json::from_str(&home.stdout(words)).unwrap()
}

fn slower(row: &mut steps::Row) {
    row.forward_time *= 1.5;
}

fn with_collections(row: &mut steps::Row) {
    row.forward_time += 0.0008;
    row.other_time += 0.0008;
}

#[test]
fn what_is_slower_than_in_a_healthy_run_is_said_unless_the_machine_was_busier() {
    let home = Home::empty();
    record(&home, "good@1", STEPS, |_| (), nothing);
    record(&home, "short@1", 30, |_| (), nothing);
    record(&home, "slow@1", STEPS, slower, nothing);
    // Everything takes a third longer, for which threads waited for a processor.
    let busy = |row: &mut steps::Row| {
        let parts = [&mut row.data_time, &mut row.forward_time, &mut row.backward_time];
        let more = [&mut row.optimizer_time, &mut row.comm_time, &mut row.other_time];
        let delay: f64 =
            parts.into_iter().chain(more).map(|part| std::mem::replace(part, *part * 4.0 / 3.0) / 3.0).sum();
        row.run_delay = Some(delay);
    };
    record(&home, "busy@1", STEPS, busy, nothing);
    let rule = "slower-than-reference";
    let found = said(&home, ["slow@1", "diagnose", "--json", "--rule", rule, "--against", "good@1"]);
    says(&found, rule, "found: every rank: forward takes longer than in the reference: 7.5 ms, 5.0 ms there");
    says(&said(&home, ["good@1", "diagnose", "--json", "--rule", rule, "--against", "good@1"]), rule, "silent");
    says(&said(&home, ["busy@1", "diagnose", "--json", "--rule", rule, "--against", "good@1"]), rule, "silent");
    says(
        &said(&home, ["slow@1", "diagnose", "--json", "--rule", rule, "--against", "short@1"]),
        rule,
        "open: 30 steps of short@1",
    );
    // Without a reference the rule is not asked, and not listed.
    assert!(!said(&home, ["slow@1", "diagnose", "--json"]).contains_key(rule));
    insta::assert_snapshot!(home.stdout(["slow@1", "diagnose", "--rule", rule, "--against", "good@1"]));
    let sql = home.stdout(["slow@1", "diagnose", "--rule", rule, "--against", "good@1", "--sql", "1"]);
    let rows = home.probe_with_input(["slow@1", "query", "--format", "csv", "-"], &sql);
    assert_eq!(String::from_utf8(rows.stdout).unwrap().lines().count(), 1 + 2 * 6 * STEPS as usize);
}

#[test]
fn a_window_of_the_same_run_is_a_reference_for_what_comes_after() {
    let home = Home::empty();
    let later = |row: &mut steps::Row| {
        if row.step >= 60 {
            slower(row);
        }
    };
    record(&home, "gpt@1", STEPS, later, nothing);
    let rule = "slower-than-reference";
    let answer = ask(&home, ["gpt", "diagnose", "--json", "--rule", rule, "--against", "0..59"]);
    assert_eq!((&answer["window"]["first"], &answer["window"]["last"]), (&60.into(), &119.into()));
    assert_eq!(answer["findings"][0]["rule"], "slower-than-reference");
    let change = answer["against"]["change_ms"].as_f64().unwrap();
    assert!((change - 2.5).abs() < 0.1, "{change}");
    let wrong = home.probe(["gpt", "diagnose", "--against", "500.."]);
    assert_eq!(wrong.status.code(), Some(1), "{}", home.shown(&wrong));
}

#[test]
fn a_fix_is_held_against_what_was_promised() {
    let home = Home::empty();
    record(&home, "before@1", STEPS, with_collections, garbage_collections);
    record(&home, "after@1", STEPS, |_| (), nothing);
    record(&home, "unknown@1", STEPS, |row| row.gc_time = None, nothing);
    let kept = ask(&home, ["after@1", "diagnose", "--json", "--rule", "garbage-collection", "--verify", "before@1"]);
    assert_eq!((&kept["findings"][0]["fate"], &kept["kept"]), (&"gone".into(), &"as promised".into()), "{kept:#}");
    assert!((kept["promised"]["ms"].as_f64().unwrap() - 1.6).abs() < 0.01, "{kept:#}");
    assert!((kept["against"]["change_ms"].as_f64().unwrap() + 1.6).abs() < 0.05, "{kept:#}");
    let still = ask(&home, ["before@1", "diagnose", "--json", "--rule", "garbage-collection", "--verify", "before@1"]);
    assert_eq!((&still["findings"][0]["fate"], &still["promised"]), (&"still there".into(), &Value::Null));
    let open = ask(&home, ["unknown@1", "diagnose", "--json", "--rule", "garbage-collection", "--verify", "before@1"]);
    assert_eq!(open["findings"][0]["fate"], "not decided", "{open:#}");
    // A step that was slower for another reason as well gains more than was promised.
    let worse = |row: &mut steps::Row| {
        with_collections(row);
        row.backward_time += 0.002;
    };
    record(&home, "worse@1", STEPS, worse, garbage_collections);
    let more = ask(&home, ["after@1", "diagnose", "--json", "--rule", "garbage-collection", "--verify", "worse@1"]);
    assert_eq!(more["kept"], "more than promised", "{more:#}");
    insta::assert_snapshot!(home.stdout([
        "after@1",
        "diagnose",
        "--rule",
        "garbage-collection",
        "--verify",
        "before@1"
    ]));
}

/// Two modules of each step: `norm` takes 0.5 ms, and `conv` 10 ms.
fn modules(agent: &mut Agent, store: &Store) {
    let kinds = [("conv", "Conv2d", 0.004, 0.006), ("norm", "BatchNorm2d", 0.0002, 0.0003)];
    for (name, kind, forward, backward) in kinds {
        let kind = Some(agent.strings.id(kind));
        for (stage, seconds) in [("forward", forward), ("backward", backward)] {
            let row = agent.trace(0, Some(name), stage, seconds);
            let row =
                |step| torch_trace::Row { step, ts: Time(START + step * 1_000_000_000), module_type: kind, ..row };
            agent.send(store, (0..STEPS).map(row));
        }
    }
}

/// Copies that take 6 ms a step at one line, and 0.1 ms at another.
fn copied(agent: &mut Agent, store: &Store) {
    let (part, file) = (Some(agent.strings.id("other")), Some(agent.strings.id("train.py")));
    for (operation, line, duration) in [("contiguous", 34, 0.006), ("clone", 12, 0.0001)] {
        let operation = agent.strings.id(operation);
        let [copy, _] = agent.copies();
        let copy = |step| copies::Row {
            step,
            operation,
            duration,
            bytes: 1 << 24,
            part,
            file,
            line: Some(line),
            stride: 20,
            ..copy
        };
        agent.send(store, (0..4).map(|of| copy(of * 20 + 9)));
    }
}

fn everything(agent: &mut Agent, store: &Store) {
    modules(agent, store);
    copied(agent, store);
}

#[test]
fn a_suspicion_is_answered_with_numbers_and_a_reason() {
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, |row| row.other_time = 0.008, everything);
    // The rules that matter here: each one takes its time in a debug build.
    let rules = "copies-of-tensors,rank-slow,device-leak,host-leak,work-between-parts";
    let answer = |name: &str| ask(&home, ["gpt", "diagnose", "--json", "--rule", rules, "--suspect", name]);
    for (name, answered, kind, why) in [
        ("copies-of-tensors", "yes", "rule", "copies 16.78 MB"),
        ("rank-slow", "no", "rule", "exceeds its reference"),
        ("memory leak", "not decided", "rule", "rows are too few"),
        ("other", "yes", "part", "other takes 8.00 ms of a step, 34 %"),
        ("Forward", "no", "part", "finding 1 (copies-of-tensors) saves"),
        ("network", "no", "part", "ranks have to exchange"),
        ("rank 1", "no", "rank", "its own work takes"),
        ("bn", "no", "module", "norm (BatchNorm2d) takes 2 % of a step"),
        ("aten::copy_", "yes", "operation", "contiguous at train.py:34"),
        ("clone", "no", "operation", "others take more: contiguous at train.py:34"),
        // Busy at every look, while the step waits for the host.
        ("gpu", "no", "device", "its utilization is 90 %"),
    ] {
        let found = answer(name);
        let reason = found["reasons"].as_array().unwrap().iter().find(|of| of["kind"] == kind).unwrap_or(&Value::Null);
        assert_eq!(reason["answer"], answered, "{name}: {found:#}");
        assert!(reason["why"].to_string().contains(why), "{name}: {found:#}");
    }
    insta::assert_snapshot!(home.stdout(["gpt", "diagnose", "--rule", rules, "--suspect", "BatchNorm"]));
    let unknown = home.probe(["gpt", "diagnose", "--rule", rules, "--suspect", "BatchNrom2d"]);
    insta::assert_snapshot!(home.shown(&unknown));
    let unknown = home.probe(["gpt", "diagnose", "--rule", "rank-slwo"]);
    assert!(home.shown(&unknown).contains("did you mean 'rank-slow'?") && unknown.status.code() == Some(2));
    let only = said(&home, ["gpt", "diagnose", "--json", "--rule", "rank-*,loader-starved"]);
    assert_eq!(
        only.into_keys().collect::<Vec<_>>(),
        ["loader-starved", "rank-has-more-data", "rank-slow", "rank-without-processor"]
    );
}

#[test]
fn sizes_of_inputs_explain_times_and_a_module_that_grows_faster_is_named() {
    let size = |step: i64| 32 + step * 37 % 480;
    let took = |step: i64| size(step) as f64 / 512.0;
    let home = Home::empty();
    let varies = |row: &mut steps::Row| {
        row.forward_time = 0.001 + 0.01 * took(row.step).powi(2);
        row.backward_time = 0.002 + 0.02 * took(row.step).powi(2);
    };
    let shapes = |agent: &mut Agent, store: &Store| {
        let kind = Some(agent.strings.id("Attention"));
        for step in 0..STEPS {
            let shape = Some(agent.strings.id(&format!("[4, {}]", size(step))));
            let row = |row: torch_trace::Row| torch_trace::Row { ts: Time(START + step * 1_000_000_000), ..row };
            let root = row(agent.trace(step, Some("Net"), "forward", 0.001));
            let inner = row(agent.trace(step, Some("layers.0"), "forward", 0.01 * took(step).powi(2)));
            let root = torch_trace::Row { input_shape: shape, ..root };
            agent.send(store, [root, torch_trace::Row { module_type: kind, input_shape: None, ..inner }]);
        }
    };
    record(&home, "gpt@1", STEPS, varies, shapes);
    let found = said(&home, ["gpt", "diagnose", "--json", "--rule", "input-size,grows-*"]);
    says(&found, "input-size", "found: every rank: how long a step takes follows the size of its input");
    says(
        &found,
        "grows-beyond-input",
        "found: every rank: the own time of Attention grows with the size of the input to the power of 2",
    );
    // Sizes that vary, and times that do not.
    record(&home, "gpt@2", STEPS, |_| (), shapes);
    says(&said(&home, ["gpt@2", "diagnose", "--json", "--rule", "input-size"]), "input-size", "silent");
    record(&home, "gpt@3", 30, varies, shapes);
    says(&said(&home, ["gpt@3", "diagnose", "--json", "--rule", "input-size"]), "input-size", "silent");
    // Whoever compiles for new sizes takes longer by that.
    let compiled = |agent: &mut Agent, store: &Store| {
        shapes(agent, store);
        compiles(&(0..STEPS).collect::<Vec<_>>(), 1)(agent, store);
    };
    record(&home, "gpt@5", STEPS, varies, compiled);
    let found = said(&home, ["gpt@5", "diagnose", "--json", "--rule", "input-size,grows-*"]);
    says(&found, "input-size", "silent");
    says(&found, "grows-beyond-input", "silent");
    // Neighbours decide how long a step takes, and its processor time follows the size.
    let crowded = |row: &mut steps::Row| {
        row.cpu_time = Some(0.003 + 0.03 * took(row.step));
        row.run_delay = Some(0.2 * (row.step * 29 % 31) as f64 / 31.0);
        row.forward_time += row.cpu_time.unwrap_or_default() + row.run_delay.unwrap_or_default();
    };
    record(&home, "gpt@4", STEPS, crowded, shapes);
    let found = &said(&home, ["gpt@4", "diagnose", "--json", "--rule", "input-size"])["input-size"];
    assert!(found.starts_with("found: ") && found.contains(" of the variation of its processor time; do: "), "{found}");
}
