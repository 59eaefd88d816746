//! The pages of `probe diagnose`: with findings, where nothing stands out, and where much is not decided.

use probe_proto::tables::steps;

use super::diagnosed_runs::{STEPS, logs, nothing, record};
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

/// Findings without their SQL, a field a line.
fn fields(ndjson: &str) -> String {
    let finding = |line: &str| {
        let mut finding: serde_json::Value = serde_json::from_str(line).unwrap();
        finding.as_object_mut().unwrap().remove("sql");
        format!("{finding:#}")
    };
    ndjson.lines().map(finding).collect::<Vec<_>>().join("\n")
}
