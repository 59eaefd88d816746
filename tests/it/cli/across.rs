//! `query --with`: one query over several runs, recorded and live.

use probe_store::runs::RunState;

use crate::cli::live::Live;
use crate::cli::support::{Home, check};

/// The rows of `gpt@1` and of every run recorded or served here.
const JOIN: &str = "SELECT a.step, a.rank, a.duration AS now, b.duration AS before, a.run FROM python.steps a \
                    JOIN b.python.steps b ON a.step = b.step AND a.rank = b.rank WHERE a.step >= 2 ORDER BY 1, 2";
const JOINED: &str =
    "step,rank,now,before,run\n2,0,3.0,3.0,gpt@1\n2,1,3.0,3.0,gpt@1\n3,0,3.0,3.0,gpt@1\n3,1,3.0,3.0,gpt@1\n";

#[test]
fn recorded_runs_are_joined() {
    let home = Home::recorded();
    let other = home.record("gpt@2", |_| ());
    let by_path = format!("b={}", other.display());
    for with in ["b=gpt@2", &by_path] {
        assert_eq!(home.stdout(["gpt@1", "query", "--with", with, JOIN, "--format", "csv"]), JOINED);
    }
    let three = "SELECT (SELECT COUNT(*) FROM python.steps) + (SELECT COUNT(*) FROM b.python.torch_trace) + \
                 (SELECT COUNT(*) FROM c.probe.agents) AS n, (SELECT MAX(step) FROM probe.python.steps) AS own";
    let words = ["gpt@1", "query", "--with", "b=gpt@2", "--with", "c=gpt@1", three, "--format", "csv"];
    assert_eq!(home.stdout(words), "n,own\n58,3\n");
}

#[test]
fn live_runs_are_joined_on_either_side() {
    let live = Live::named(Home::recorded(), "now@1");
    live.home.record("now@1", |info| info.state = RunState::Live);
    let query = |endpoint: &str, with: &str, sql: &str| {
        live.home.stdout([endpoint, "query", "--with", with, sql, "--format", "csv"])
    };
    assert_eq!(query("now", "b=gpt", JOIN), JOINED);
    assert_eq!(query("gpt", "b=now", JOIN), JOINED);
    assert_eq!(query("now", "b=now", JOIN), JOINED);
    for (sql, answer) in [
        ("SELECT COUNT(*) AS n FROM b.python.torch_trace", "n\n48\n"),
        ("SELECT COUNT(*) AS n FROM b.python.torch_trace WHERE module = 'AdamW' AND rank = 1 AND step > 1", "n\n2\n"),
        ("SELECT COUNT(*) AS n FROM b.python.torch_trace WHERE module LIKE '%.1' AND duration > 0.75", "n\n8\n"),
        ("SELECT COUNT(*) AS n FROM b.python.torch_trace WHERE module IS NULL OR step IN (0, 1)", "n\n28\n"),
        ("SELECT step FROM b.python.steps WHERE step = 3 LIMIT 1", "step\n3\n"),
        ("SELECT rank, state FROM b.probe.agents ORDER BY rank", "rank,state\n0,live\n1,lost\n"),
        ("SELECT COUNT(*) AS n FROM b.python.steps a, b.python.steps b", "n\n64\n"),
    ] {
        assert_eq!(query("gpt", "b=now", sql), answer, "{sql}");
    }
    // A process is its own rows alone, on either side.
    assert_eq!(query("gpt", "b=101", "SELECT COUNT(*) AS n FROM b.python.steps"), "n\n4\n");
    assert_eq!(query("101", "b=gpt", "SELECT COUNT(*) AS n FROM python.steps"), "n\n4\n");
}

#[test]
fn what_a_live_run_is_asked_is_small() {
    let live = Live::named(Home::recorded(), "now@1");
    let sql = "EXPLAIN ANALYZE SELECT step FROM b.python.torch_trace WHERE step > 1 AND module = 'AdamW'";
    let plan = live.home.stdout(["gpt", "query", "--with", "b=now", sql, "--format", "csv"]);
    // The filter here had nothing left to do: only rows that it lets through came over.
    assert!(plan.contains("StreamingTableExec") && plan.contains("projection=[step, module]"), "{plan}");
    assert!(plan.contains("output_rows=4,") && plan.contains("(4/4)"), "{plan}");
}

#[test]
fn what_is_no_other_run_is_said() {
    let home = Home::recorded();
    let with = |with: &str, sql: &str| home.probe(["gpt", "query", "--with", with, sql]);
    check!(home, "with_unknown", with("before=gpt", "SELECT COUNT(*) FROM befor.python.steps"));
    check!(home, "with_nobody", home.probe(["gpt", "query", "SELECT COUNT(*) FROM b.python.steps"]));
    check!(home, "with_no_such_run", with("b=gtp", "SELECT 1"));
    check!(home, "with_wrong_name", with("B=gpt", "SELECT 1"));
    for wrong in ["python=gpt", "probe=gpt", "information_schema=gpt", "b", "b=", "=gpt", "1b=gpt"] {
        let output = with(wrong, "SELECT 1");
        assert_eq!(output.status.code(), Some(2), "{wrong}: {}", home.shown(&output));
    }
    let twice = home.probe(["gpt", "query", "--with", "b=gpt", "--with", "b=gpt@1", "SELECT 1"]);
    assert_eq!(twice.status.code(), Some(2), "{}", home.shown(&twice));
    let write = with("b=gpt", "INSERT INTO b.python.steps SELECT * FROM python.steps");
    assert_eq!(write.status.code(), Some(4), "{}", home.shown(&write));
}
