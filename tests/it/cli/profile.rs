//! `probe profile` and `probe flamegraph --operators`: pages of what was captured or imported.

use crate::cli::export::imported;
use crate::cli::support::{Home, check};

#[test]
fn a_page_says_what_takes_the_time() {
    let home = imported();
    check!(home, "profile", home.probe(["trace", "profile"]));
    check!(home, "profile_by_kernel", home.probe(["trace", "profile", "--by", "kernel", "--top", "2"]));
    check!(home, "profile_by_module", home.probe(["trace", "profile", "--by", "module", "--rank", "1"]));
    check!(home, "profile_by_line", home.probe(["trace", "profile", "--by", "line", "--format", "csv"]));
}

#[test]
fn operators_make_a_flame_graph_by_host_and_by_device() {
    let home = imported();
    check!(home, "flame_of_operators", home.probe(["trace", "flamegraph", "--operators", "--format", "folded"]));
    let words = ["trace", "flamegraph", "--operators", "--weight", "device", "--by-rank", "--format", "folded"];
    check!(home, "flame_of_operators_on_devices", home.probe(words));
    let svg = home.stdout(["trace", "flamegraph", "--operators"]);
    assert!(svg.contains("<svg") && svg.contains("aten::addmm"), "{svg}");
    let file = home.stdout(["trace", "flamegraph", "--operators", "--format", "speedscope"]);
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    let weights = file["profiles"][0]["weights"].as_array().unwrap();
    let sum: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
    assert_eq!(file["profiles"][0]["endValue"], sum);
}

#[test]
fn where_nothing_was_captured_the_page_says_what_records_it() {
    let home = Home::empty();
    home.record("gpt@1", |_| ());
    let traces = home.path().join("cpu.json");
    std::fs::write(
        &traces,
        r#"{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}"#,
    )
    .unwrap();
    home.stdout(["import", "--name", "cpu", traces.to_str().unwrap()]);
    check!(home, "profile_of_a_cpu", home.probe(["cpu", "profile", "--by", "line"]));
    check!(home, "profile_without_devices", home.probe(["cpu", "profile", "--by", "kernel"]));
    check!(home, "profile_without_these_steps", home.probe(["cpu", "profile", "--steps", "7.."]));
    check!(home, "flame_without_devices", home.probe(["cpu", "flamegraph", "--operators", "--weight", "device"]));
    // The agent's and the collector's tables alone.
    let empty = home.path().join("home/runs/none@1");
    std::fs::create_dir_all(&empty).unwrap();
    std::fs::copy(home.run_directory().join("run.json"), empty.join("run.json")).unwrap();
    check!(home, "profile_of_nothing", home.probe(["none", "profile"]));
}
