//! The pages of `probe diagnose`: with findings, where nothing stands out, and where much is not decided.

use probe_proto::tables::steps;

use super::diagnosed_runs::{STEPS, logs, nothing, record, record_ranks, said};
use crate::cli::support::Home;

#[test]
fn the_page_with_findings() {
    let home = Home::empty();
    let change = |row: &mut steps::Row| {
        if row.step % 20 == 0 {
            row.other_time = 0.2;
        }
        row.optimizer_time = 0.002;
    };
    record(&home, "gpt@1", STEPS, change, logs("train_loss", |step| if step > 90 { f64::NAN } else { 2.0 }));
    insta::assert_snapshot!("diagnose_findings", home.stdout(["gpt", "diagnose"]));
    insta::assert_snapshot!(
        "diagnose_findings_ndjson",
        fields(&home.stdout(["gpt", "diagnose", "--format", "ndjson"]))
    );
}

#[test]
fn the_page_where_nothing_stands_out() {
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, |_| (), nothing);
    insta::assert_snapshot!("diagnose_silent", home.stdout(["gpt", "diagnose"]));
}

#[test]
fn the_page_with_notes_alone() {
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, |row| row.run_delay = Some(0.004), nothing);
    let page = home.stdout(["gpt", "diagnose"]);
    assert!(page.contains("\nverdict: no warning; one note: waits-for-a-processor\n"), "{page}");
}

#[test]
fn the_page_where_too_little_was_recorded() {
    let home = Home::empty();
    let change = |row: &mut steps::Row| (row.cpu_time, row.run_delay, row.gc_time) = (None, None, None);
    record(&home, "gpt@1", 30, change, nothing);
    insta::assert_snapshot!("diagnose_not_decided", home.stdout(["gpt", "diagnose", "--all"]));
    let page = home.stdout(["gpt", "diagnose", "--rule", "not-finite,host-leak,gpu-errors"]);
    assert!(
        page.contains("\nruled out: gpu-errors, not-finite: no sign of it in these steps\nnot decided: host-leak: "),
        "{page}"
    );
}

#[test]
fn the_verdict_says_what_a_step_takes_without_its_cause() {
    let verdict = |change: &dyn Fn(&mut steps::Row), rule: &str| {
        let home = Home::empty();
        record(&home, "gpt@1", STEPS, change, nothing);
        let page = home.stdout(["gpt", "diagnose", "--rule", rule]);
        page.lines().find(|line| line.starts_with("verdict: ")).unwrap().to_owned()
    };
    let stalls = |row: &mut steps::Row| row.other_time = if row.step % 20 == 0 { 0.2 } else { 0.0005 };
    assert_eq!(
        verdict(&stalls, "periodic-stall"),
        "verdict: every rank: every 20 steps, the loop's own code (other) takes 199.5 ms longer (6 times); \
         without that a step takes 16.1 ms (38 % [17, 51] less)"
    );
    let works = |row: &mut steps::Row| row.other_time = 0.02;
    let said = verdict(&works, "work-between-parts");
    assert!(said.contains("; without that a step takes about ") && said.contains(" ms (about "), "{said}");
    // Where less may be saved, a step takes more.
    let validates = |row: &mut steps::Row| row.validation_time = Some(if row.step % 10 == 0 { 0.2 } else { 0.0 });
    let said = verdict(&validates, "validation-in-steps");
    assert!(said.contains("; without that a step takes at least 16.") && said.contains(" ms (at most 5"), "{said}");
}

#[test]
fn rules_about_time_are_withheld_where_the_replay_does_not_fit() {
    // Ranks that do not wait for each other: the second one takes 26 ms a step, and the first one 16 and no more.
    let apart = |rank: i32, row: &mut steps::Row| row.forward_time += 0.01 * f64::from(rank);
    let home = Home::empty();
    record_ranks(&home, "gpt@1", STEPS, apart, nothing);
    let why = "the replay is off by 23.8 %, and what takes time is judged up to 5 %";
    let page = home.stdout(["gpt", "diagnose", "--rule", "rank-slow,periodic-stall,not-finite"]);
    assert!(page.contains(&format!("\nverdict: not decided: {why}\n")), "{page}");
    assert!(page.contains(&format!("\nnot decided: periodic-stall, rank-slow: {why}\n")), "{page}");
    assert!(page.contains("\nruled out: not-finite: "), "{page}");
    assert!(page.contains("; the replay is off by 23.8 %\n"), "{page}");
    let answer: serde_json::Value = serde_json::from_str(&home.stdout(["gpt", "diagnose", "--json"])).unwrap();
    assert_eq!((&answer["fits"], &answer["verdict"]), (&false.into(), &serde_json::Value::Null), "{answer:#}");
    let answers = said(&home, ["gpt", "diagnose", "--json"]);
    assert!(answers.values().all(|of| !of.starts_with("found")), "{answers:#?}");
    assert_eq!(answers["rank-slow"], format!("open: {why}"));
    let status = |severity| home.probe(["gpt", "diagnose", "--fail-on", severity]).status.code();
    assert_eq!((status("note"), status("critical")), (Some(7), Some(7)));
    // The same difference, for which the first rank waits.
    let waits = |rank: i32, row: &mut steps::Row| {
        apart(rank, row);
        row.comm_time += 0.01 * f64::from(1 - rank);
    };
    record_ranks(&home, "waits@1", STEPS, waits, nothing);
    let answers = said(&home, ["waits@1", "diagnose", "--json", "--rule", "rank-slow"]);
    assert!(answers["rank-slow"].starts_with("found: rank 1 "), "{answers:#?}");
}

#[test]
fn all_shows_how_near_the_rules_came_that_were_ruled_out() {
    let home = Home::empty();
    let stalls = |row: &mut steps::Row| row.checkpoint_time = Some(if row.step % 20 == 0 { 0.003 } else { 0.0 });
    record(&home, "gpt@1", STEPS, stalls, nothing);
    let page = home.stdout(["gpt", "diagnose", "--all"]);
    let near = "ruled out: checkpoint-stalls: it would save 0.9 % [0.3, 1.5]; a note takes 2 %\n";
    assert!(page.contains(near), "{page}");
    let answer: serde_json::Value = serde_json::from_str(&home.stdout(["gpt", "diagnose", "--json"])).unwrap();
    let of = |rule: &str| answer["ruled_out"].as_array().unwrap().iter().find(|of| of["rule"] == rule).unwrap();
    let score = &of("checkpoint-stalls")["score"];
    let number = |key: &str| score[key].as_f64().unwrap();
    assert_eq!((&score["of"], number("level")), (&"saving".into(), 2.0));
    assert!((number("value") - 0.92).abs() < 0.02 && number("low") > 0.0 && number("high") < 2.0, "{score:#}");
    // No number decided where the query has no row.
    assert_eq!(of("not-finite")["score"], serde_json::Value::Null);
}

/// Findings without their SQL, a field a line.
fn fields(ndjson: &str) -> String {
    let finding = |line: &str| {
        let mut finding: serde_json::Value = serde_json::from_str(line).unwrap();
        finding.as_object_mut().unwrap().remove("sql");
        format!("{finding:#}")
    };
    ndjson.lines().map(finding).collect::<Vec<_>>().join("\n")
}
