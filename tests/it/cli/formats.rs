//! One snapshot for each format, from a run that has ended.

use std::process::Stdio;

use crate::cli::support::{Home, check};

const ROWS: &str = "SELECT rank, step, module, stage, ts, duration, compiled, input_shape FROM python.torch_trace \
                    WHERE step = 3 AND (rank = 0 OR module = 'AdamW') ORDER BY rank, stage, module, duration";

#[test]
fn every_format_shows_the_same_rows() {
    let home = Home::recorded();
    check!(home, "table", home.probe(["gpt", "query", ROWS]));
    check!(home, "csv", home.probe(["gpt", "query", ROWS, "--format", "csv"]));
    check!(home, "json", home.probe(["gpt", "query", ROWS, "--format", "json"]));
    check!(home, "ndjson", home.probe(["gpt", "query", ROWS, "--format", "ndjson"]));
}

#[test]
fn values_that_are_hard_to_write_are_written() {
    let home = Home::recorded();
    let sql = "SELECT 0.1 + 0.2 AS sum, 0.0000123456789 AS small, 1234567.891 AS large, CAST('NaN' AS DOUBLE) AS nan, \
               CAST('inf' AS DOUBLE) AS inf, 9007199254740993 AS big, NULL AS nothing, '' AS empty, E'two\nlines, \"quoted\" \x1b[31m' AS text, \
               [1, 2] AS list, TIMESTAMP '2026-01-02T03:04:05.000006789Z' AS ts, 'é日本' AS wide";
    for (format, name) in [("table", "hard_table"), ("csv", "hard_csv"), ("json", "hard_json")] {
        let output = home.probe(["gpt", "query", sql, "--format", format]);
        match name {
            "hard_table" => check!(home, "hard_table", output),
            "hard_csv" => check!(home, "hard_csv", output),
            _ => check!(home, "hard_json", output),
        }
    }
}

#[test]
fn json_rows_keep_types_and_every_value() {
    let home = Home::recorded();
    let sql = "SELECT 1.5 AS f, CAST('NaN' AS DOUBLE) AS nan, CAST('-inf' AS DOUBLE) AS inf, CAST(0.1 AS REAL) AS real, \
               9007199254740993 AS big, NULL AS nothing, 'é\"\\' AS text, true AS yes, \
               arrow_cast(1, 'Timestamp(ns, \"UTC\")') AS ts, arrow_cast(1, 'Timestamp(ms)') AS plain, \
               arrow_cast(5, 'Duration(us)') AS took, DATE '2026-01-02' AS day, TIME '01:02:03' AS at, \
               arrow_cast(1.5, 'Decimal128(10, 2)') AS exact, X'00ff' AS bytes, INTERVAL '1 day' AS every, \
               [1.5, NULL, CAST('inf' AS DOUBLE)] AS list, {a: 1, b: 'x'} AS pair";
    check!(home, "hard_json_rows", home.probe(["gpt", "query", sql, "--format", "json-rows"]));
    let none = "SELECT step FROM python.steps WHERE step > 1000";
    let expected = "{\"columns\":[{\"name\":\"step\",\"type\":\"int\"}]}\n{\"rows\":0}\n";
    assert_eq!(home.stdout(["gpt", "query", none, "--format", "json-rows"]), expected);
}

#[test]
fn a_query_that_nobody_reads_any_more_ends() {
    let home = Home::recorded();
    let endless = "SELECT COUNT(*) FROM generate_series(1, 1000000000000) WHERE value % 2 = 3";
    let mut child = home.command(["gpt", "query", endless]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn parameters_are_bound_and_not_pasted() {
    let home = Home::recorded();
    let sql = "SELECT COUNT(*) AS n, $text AS text, $half * 2 AS one, $none IS NULL AS none FROM python.steps WHERE step > $step";
    let given = ["--param", "step=1", "--param", "text='; --", "--param", "half=0.5", "--param", "none=NULL"];
    let asked = home.command([&["gpt", "query", "--format", "csv", sql], &given[..]].concat()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&asked.stdout), "n,text,one,none\n4,'; --,1.0,true\n");
    let file = home.path().join("steps.sql");
    std::fs::write(
        &file,
        "SELECT COUNT(*) AS n FROM python.steps a JOIN other.python.steps b USING (step, rank) WHERE a.step = $step",
    )
    .unwrap();
    let with =
        ["gpt", "query", "--format", "csv", "-f", file.to_str().unwrap(), "--with", "other=gpt", "--param", "step=1"];
    assert_eq!(home.stdout(with), "n\n2\n");
    let sql = "SELECT step FROM python.steps WHERE step > $first";
    check!(home, "parameter_missing", home.probe(["gpt", "query", sql]));
    check!(home, "parameter_unknown", home.probe(["gpt", "query", sql, "--param", "first=1", "--param", "frist=1"]));
    check!(home, "parameter_badly_typed", home.probe(["gpt", "query", sql, "--param", "first:int=soon"]));
    check!(home, "parameter_of_another_type", home.probe(["gpt", "query", sql, "--param", "first=soon"]));
    check!(home, "parameter_twice", home.probe(["gpt", "query", sql, "--param", "first=1", "--param", "first=2"]));
}

#[test]
fn an_answer_without_rows_has_its_columns() {
    let home = Home::recorded();
    let none = "SELECT step, module FROM python.torch_trace WHERE step > 1000";
    assert_eq!(home.stdout(["gpt", "query", none, "--format", "csv"]), "step,module\n");
    assert_eq!(home.stdout(["gpt", "query", none, "--format", "json"]), "[]\n");
    assert_eq!(home.stdout(["gpt", "query", none, "--format", "ndjson"]), "");
    assert_eq!(home.stdout(["gpt", "query", none]), "step  module\n────  ──────\n");
}

#[test]
fn columns_of_one_name_are_both_in_a_json_object() {
    let home = Home::recorded();
    let sql = "SELECT a.step, b.step FROM python.steps a JOIN python.steps b ON a.step = b.step + 1 AND a.rank = b.rank \
               WHERE a.step = 1 AND a.rank = 0";
    assert_eq!(home.stdout(["gpt", "query", sql, "--format", "ndjson"]), "{\"step\":1,\"step_2\":0}\n");
}

#[test]
fn sql_comes_from_the_argument_a_file_or_standard_input() {
    let home = Home::recorded();
    let sql = "SELECT COUNT(*) AS n FROM python.steps";
    let expected = "n\n8\n";
    let file = home.path().join("count.sql");
    std::fs::write(&file, sql).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(home.stdout(["gpt", "query", sql, "--format", "csv"]), expected);
    assert_eq!(home.stdout(["gpt", "query", "-f", file, "--format", "csv"]), expected);
    for words in [
        &["gpt", "query", "--format", "csv"][..],
        &["gpt", "query", "-", "--format=csv"],
        &["gpt", "query", "-f-", "--format=csv"],
    ] {
        let words: [&str; 4] = std::array::from_fn(|index| words.get(index).copied().unwrap_or("--limit-rows=0"));
        let output = home.probe_with_input(words, sql);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{words:?}");
    }
}

#[test]
fn a_limit_says_that_there_are_more_rows() {
    let home = Home::recorded();
    let sql = "SELECT step FROM python.steps WHERE rank = 0 ORDER BY step";
    check!(home, "limited", home.probe(["gpt", "query", sql, "--limit-rows", "2"]));
    let exactly = home.probe(["gpt", "query", sql, "--limit-rows", "4", "--format", "csv"]);
    assert_eq!((exactly.stdout.as_slice(), exactly.stderr.as_slice()), (&b"step\n0\n1\n2\n3\n"[..], &b""[..]));
}

#[test]
fn a_table_is_bounded_and_the_other_formats_are_not() {
    let home = Home::recorded();
    let many = "SELECT a.step FROM python.torch_trace a, python.torch_trace b, python.steps c";
    let table = home.probe(["gpt", "query", many]);
    assert_eq!(String::from_utf8(table.stdout).unwrap().lines().count(), 2 + 10_000);
    assert!(String::from_utf8(table.stderr).unwrap().contains("only the first 10000 rows\nhint: --limit-rows N"));
    assert_eq!(table.status.code(), Some(5));
    assert_eq!(home.stdout(["gpt", "query", many, "--format", "csv"]).lines().count(), 1 + 48 * 48 * 8);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let home = Home::recorded();
    let many = "SELECT a.* FROM python.torch_trace a, python.torch_trace b, python.steps c";
    for format in ["table", "csv", "json", "ndjson", "arrow", "parquet"] {
        let mut command = home.command(["gpt", "query", many, "--format", format]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()),
            (Some(0), ""),
            "{format}"
        );
    }
}

#[test]
fn a_run_can_be_named_in_every_way() {
    let home = Home::recorded();
    let directory = home.run_directory();
    for endpoint in ["gpt", "gpt@1", directory.to_str().unwrap()] {
        assert_eq!(home.stdout([endpoint, "query", "SELECT 1 AS one", "--format", "csv"]), "one\n1\n", "{endpoint}");
    }
    let output =
        home.command(["query", "SELECT 1 AS one", "--format", "csv"]).env("PROBE_ENDPOINT", "gpt").output().unwrap();
    assert_eq!(output.stdout, b"one\n1\n");
}

#[test]
fn tables_are_listed() {
    let home = Home::recorded();
    check!(home, "tables", home.probe(["tables"]));
    check!(home, "tables_of_a_run", home.probe(["gpt", "tables"]));
    check!(home, "table_drops", home.probe(["tables", "probe.drops"]));
    check!(home, "table_drops_json", home.probe(["tables", "drops", "--format", "json"]));
    assert!(Home::empty().probe(["tables", "python.torch_trace"]).status.success(), "needs no run");
}
