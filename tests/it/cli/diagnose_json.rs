//! The JSON of `probe diagnose`: its fields and their types, which programs read, and times that sum to those of the steps.

use std::collections::{BTreeMap, BTreeSet};

use probe_proto::table::Time;
use probe_proto::tables::{environment, memory, overhead, steps};
use probe_store::Store;
use serde_json::Value;

use super::diagnosed_runs::{STEPS, logs, nothing, record, record_ranks, recording_cost};
use super::suspicions::ask;
use crate::cli::support::Home;
use crate::sql::data::{Agent, START};

/// Fields whose values are words of a fixed list.
const WORDS: [&str; 5] = ["severity", "confidence", "kind", "leaf", "fits"];

/// Adds the types of a value and of what it contains, by their paths; of words also the values.
fn shape(value: &Value, path: &str, shapes: &mut BTreeMap<String, BTreeSet<String>>) {
    let name = path.rsplit('.').next().unwrap_or_default();
    let kind = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::String(_) if WORDS.contains(&name) => value.to_string(),
        Value::Bool(_) => "boolean".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(all) => {
            all.iter().for_each(|of| shape(of, &format!("{path}[]"), shapes));
            "array".to_owned()
        }
        Value::Object(all) => {
            // Facts are columns of the rules.
            let fixed = all.iter().filter(|_| name != "facts");
            fixed.for_each(|(key, of)| shape(of, &format!("{path}.{key}"), shapes));
            "object".to_owned()
        }
    };
    shapes.entry(path.to_owned()).or_default().insert(kind);
}

/// A line for each field.
fn lines(answer: &Value) -> String {
    let mut shapes = BTreeMap::new();
    shape(answer, "", &mut shapes);
    let line = |(path, kinds): (&String, &BTreeSet<String>)| {
        format!("{path}: {}\n", kinds.iter().map(String::as_str).collect::<Vec<_>>().join(" or "))
    };
    shapes.iter().filter(|(path, _)| !path.is_empty()).map(line).collect()
}

/// Conditions, memory that grows, the cost of recording, a loss that is not finite, and samples of the stack between the parts.
fn evidence(threads: i32) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let (device, torch_threads) = (Some(agent.strings.id("cpu")), Some(threads));
        let row = environment::Row { device, torch_threads, cpu_cores: Some(64), ..agent.environment() };
        agent.send(store, [row]);
        logs("train_loss", |step| if step > 90 { f64::NAN } else { 2.0 })(agent, store);
        let memory: Vec<_> = (0..STEPS)
            .map(|step| memory::Row { rss: Some(2000.0 + 10.0 * step as f64), ..agent.memory(step, "cpu") })
            .collect();
        agent.send(store, memory);
        let cost = |step: i64| overhead::Row {
            measured_ratio: Some(1.005),
            measured_low: Some(1.0),
            measured_high: Some(1.01),
            measured_pairs: 20,
            ..recording_cost(step, 0.0001)
        };
        agent.send(store, (0..STEPS).step_by(2).map(cost));
        let samples: Vec<_> = (0..STEPS).map(|step| agent.stack_sample(step, step as f64 + 0.005)).collect();
        agent.send(store, samples);
    }
}

#[test]
fn the_fields_of_the_json_and_their_types_are_fixed() {
    let home = Home::empty();
    let slow = |row: &mut steps::Row| {
        row.other_time = if row.step % 20 == 0 { 0.4 } else { 0.02 };
        row.gpu_idle_max = Some(0.025);
    };
    record(&home, "good@1", STEPS, |_| (), evidence(4));
    record(&home, "slow@1", STEPS, slow, evidence(1));
    let found = ask(&home, ["slow@1", "diagnose", "--json", "--against", "good@1"]);
    let severities: BTreeSet<&str> =
        found["findings"].as_array().unwrap().iter().filter_map(|of| of["severity"].as_str()).collect();
    assert_eq!(severities, BTreeSet::from(["critical", "note", "warn"]), "{found:#}");
    insta::assert_snapshot!("diagnose_json_with_findings", lines(&found));
    let suspected = ask(&home, ["slow@1", "diagnose", "--json", "--suspect", "other"]);
    insta::assert_snapshot!("diagnose_json_suspect", lines(&suspected));
    let verified = ask(&home, ["good@1", "diagnose", "--json", "--verify", "slow@1"]);
    insta::assert_snapshot!("diagnose_json_verify", lines(&verified));
}

#[test]
fn the_fields_of_the_json_are_there_where_nothing_stands_out() {
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, |_| (), nothing);
    let answer = ask(&home, ["gpt", "diagnose", "--json"]);
    assert_eq!(answer["findings"], Value::Array(Vec::new()), "{answer:#}");
    insta::assert_snapshot!("diagnose_json_silent", lines(&answer));
}

#[test]
fn every_field_of_the_json_is_in_its_documentation() {
    let read = |path: &str| std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let page = read("docs/diagnose.md");
    let section = page.split_once("\n## JSON\n").unwrap().1.split("\n## ").next().unwrap().to_owned();
    let fields = read("tests/it/cli/snapshots/it__cli__diagnose_json__diagnose_json_with_findings.snap");
    let paths = fields.lines().filter_map(|line| line.strip_prefix('.')?.split_once(": "));
    let names: BTreeSet<&str> =
        paths.map(|(path, _)| path.rsplit('.').next().unwrap_or(path).trim_end_matches("[]")).collect();
    assert!(names.len() > 60, "{names:?}");
    let missing: Vec<&&str> = names.iter().filter(|name| !section.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Steps whose parts are not their durations: some lack time, and some have more.
fn uneven_steps(agent: &mut Agent, store: &Store) {
    let rank = i64::from(agent.identity.rank.unwrap());
    let clock = agent.strings.id("host");
    let row = |step: i64| {
        let of = |part: i64| ((step * 7 + rank * 5 + part * 3) % 11 + 1) as f64 / 1234.5;
        let parts = [0, 1, 2, 3, 4, 5].map(of);
        steps::Row {
            ts: Time(START + step * 1_000_000_000),
            data_time: parts[0],
            forward_time: parts[1],
            backward_time: parts[2],
            optimizer_time: parts[3],
            comm_time: parts[4],
            other_time: parts[5],
            validation_time: None,
            checkpoint_time: None,
            duration: parts.iter().sum::<f64>() + [0.0, 0.003, -0.0005][(step % 3) as usize],
            clock,
            ..steps::Row::of_a_second(step)
        }
    };
    agent.send(store, (0..STEPS).map(row));
}

#[test]
fn the_waterfall_sums_to_the_recorded_steps_to_the_last_bit() {
    let home = Home::empty();
    record_ranks(&home, "gpt@1", 0, |_, _| (), uneven_steps);
    // In each step, the duration of the rank whose own work took longest, in 2^-30 s.
    let sql = "SELECT CAST(SUM(ticks) AS BIGINT) AS ticks FROM (SELECT ROUND(duration * 1073741824) AS ticks, \
               ROW_NUMBER() OVER (PARTITION BY step ORDER BY duration - comm_time DESC, rank) AS n FROM python.steps) \
               WHERE n = 1";
    let recorded: i64 = home.stdout(["gpt", "query", "--format", "csv", sql]).lines().nth(1).unwrap().parse().unwrap();
    let answer = ask(&home, ["gpt", "diagnose", "--json"]);
    let steps = answer["window"]["steps"].as_f64().unwrap();
    let ticks = |ms: &Value| (ms.as_f64().unwrap() * steps / 1000.0 * 1_073_741_824.0).round() as i64;
    let rows = answer["waterfall"].as_array().unwrap();
    let sum: i64 = rows.iter().map(|row| ticks(&row["typical_ms"]) + ticks(&row["excess_ms"])).sum();
    assert_eq!((sum, ticks(&answer["step_ms"])), (recorded, recorded), "{answer:#}");
    // What the parts lack, or have beyond the step, is a row of its own: a mean of (0 + 3 - 0.5) / 3 ms.
    let rest = rows.iter().find(|row| row["part"] == "unaccounted").unwrap();
    let rest = rest["typical_ms"].as_f64().unwrap() + rest["excess_ms"].as_f64().unwrap();
    assert!((rest - 2.5 / 3.0).abs() < 1e-3, "{rest}");
}
