//! Execution traces of both schemas, and dumps of NCCL's inspector.

use std::path::Path;

use serde_json::{Value, json};

use super::table_rows;
use crate::{ImportedCapture, RangePatterns, TraceFile, TraceFormat, import};

fn imported(text: &str, directory: &Path) -> probe_common::error::Result<Vec<ImportedCapture>> {
    let path = directory.join("rank-5.json");
    std::fs::write(&path, text).unwrap();
    let format = TraceFormat::detect(&crate::head::FileHead { bytes: text.as_bytes().to_vec() }).unwrap();
    let file = TraceFile { path, capture: "rank-5.json".into(), named: true, format };
    Ok(import(&[file], "run@1", directory, &RangePatterns::default(), &mut |_| ())?.captures)
}

const COLUMNS: [&str; 12] = [
    "node",
    "parent_node",
    "parent",
    "depth",
    "name",
    "kind",
    "record_function",
    "forward_node",
    "sequence",
    "thread",
    "input_shapes",
    "input_types",
];

/// Id, caller, name, schema.
type Node<'a> = (i64, i64, &'a str, &'a str);

const NODES: [Node<'_>; 6] = [
    (2, 1, "[pytorch|profiler|execution_trace|thread]", ""),
    (5, 4, "aten::t", "aten::t(Tensor(a) self) -> Tensor(a)"),
    (4, 3, "aten::linear", "aten::linear(…)"),
    (3, 2, "## forward ##", ""),
    (9, 8, "aten::mm", "aten::mm(…)"),
    (1, 1, "[pytorch|profiler|execution_trace|process]", ""),
];

fn flat((id, parent, name, schema): Node<'_>) -> Value {
    json!({"id": id, "parent": parent, "name": name, "op_schema": schema, "rf_id": id * 10, "fw_parent": 0, "seq_id": 7,
        "tid": 1, "inputs": [[5, 6, 0, 4, 4, "cpu"]], "input_shapes": [[2, 2]], "input_types": ["Tensor(float)"]})
}

fn chakra((id, parent, name, schema): Node<'_>) -> Value {
    let attrs = [
        ("rf_id", json!(id * 10)),
        ("fw_parent", json!(0)),
        ("seq_id", json!(7)),
        ("tid", json!(1)),
        ("op_schema", json!(schema)),
    ];
    let attrs: Vec<Value> =
        attrs.iter().map(|(name, value)| json!({"name": name, "type": "x", "value": value})).collect();
    json!({"id": id, "ctrl_deps": parent, "name": name, "attrs": attrs,
        "inputs": {"values": [[5, 6, 0, 4, 4, "cpu"]], "shapes": [[2, 2]], "types": ["Tensor(float)"]}})
}

#[test]
fn operators_of_both_schemas_know_what_called_them() {
    for (schema, node) in [("1.0.1", flat as fn(Node<'_>) -> Value), ("1.1.1-chakra.0.0.4", chakra)] {
        let directory = tempfile::tempdir().unwrap();
        let nodes: Vec<Value> = NODES.iter().map(|one| node(*one)).collect();
        let text = json!({"schema": schema, "pid": 4711, "nodes": nodes}).to_string();
        let captures = imported(&text, directory.path()).unwrap();
        assert_eq!((captures[0].rows.nodes, captures[0].events, captures[0].rank), (4, 6, Some(5)));
        assert_eq!(captures[0].left_out, [("root of a process or thread".into(), 2)]);
        let rows: Vec<String> =
            table_rows(directory.path(), "python.execution_trace", &COLUMNS).iter().map(|row| row.join(" ")).collect();
        let same = "[[2,2]] [\"Tensor(float)\"]";
        let expected = [
            format!("3   0 ## forward ## annotation 30  7 1 {same}"),
            format!("4 3 ## forward ## 1 aten::linear operator 40  7 1 {same}"),
            format!("5 4 aten::linear 2 aten::t operator 50  7 1 {same}"),
            format!("9    aten::mm operator 90  7 1 {same}"),
        ];
        assert_eq!(rows, expected, "{schema}");
    }
}

#[test]
fn callers_in_a_circle_end() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = [(1, 2, "a", "a()"), (2, 1, "b", "b()"), (2, 1, "twice", "")].map(flat);
    let captures = imported(&json!({"schema": "1.0.1", "nodes": nodes}).to_string(), directory.path()).unwrap();
    assert_eq!(captures[0].left_out, [("number of another node".into(), 1)]);
    let rows = table_rows(directory.path(), "python.execution_trace", &["name", "parent", "depth"]);
    assert_eq!(rows, [["a", "twice", ""], ["b", "a", ""]]);
}

#[test]
fn process_groups_of_an_execution_trace_are_rows() {
    let directory = tempfile::tempdir().unwrap();
    let groups = json!([{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}, {"pg_name": "1", "ranks": [0, 3]}]);
    let mut node = chakra((4, 1, "## process_group:init ##", ""));
    node["inputs"]["values"] = json!([groups.to_string()]);
    imported(&json!({"schema": "1.1.1", "nodes": [node]}).to_string(), directory.path()).unwrap();
    let columns = ["group_name", "description", "group_size", "ranks"];
    let rows = table_rows(directory.path(), "python.process_groups", &columns);
    assert_eq!(rows, [["0", "default_pg", "2", ""], ["1", "", "", "[0,3]"]]);
}

#[test]
fn operations_of_the_inspector_are_a_capture_a_process() {
    let directory = tempfile::tempdir().unwrap();
    let operation = |pid: i64, measured: &str, what: Value| {
        let mut object = json!({"header": {"id": "0x7f", "rank": 2, "n_ranks": 8, "nnodes": 1},
            "metadata": {"dump_timestamp_us": 1_748_030_377_748_202_i64, "hostname": "node", "pid": pid}});
        object[measured] = what;
        serde_json::to_string_pretty(&object).unwrap()
    };
    let slow = json!({"coll": "AllReduce", "coll_sn": 7, "coll_msg_size_bytes": 1024, "coll_exec_time_us": 250, "coll_busbw_gbs": 1.5});
    let sent = json!({"p2p": "Send", "p2p_sn": 8, "p2p_peer": 3, "p2p_msg_size_bytes": 64, "p2p_exec_time_us": 10,
        "event_trace_ts": {"p2p_start_ts": 1_748_030_377_748_000_i64}});
    let text = [operation(41, "coll_perf", slow), operation(42, "p2p_perf", sent), "{\"header\": 3}".into()].join("\n");
    let captures = imported(&text, directory.path()).unwrap();
    let named: Vec<_> =
        captures.iter().map(|capture| (&*capture.name, capture.rows.collectives, capture.events)).collect();
    assert_eq!(named, [("rank-5.json/node/41", 1, 2), ("rank-5.json/node/42", 1, 1)]);
    let columns =
        ["pid", "ts", "duration", "operation_type", "seq", "p2p", "peer", "bytes", "busbw_gbps", "communicator_rank"];
    let rows: Vec<String> =
        table_rows(directory.path(), "python.nccl_inspector", &columns).iter().map(|row| row.join(" ")).collect();
    let expected =
        ["41  0.00025 AllReduce 7 false  1024 1.5 2", "42 2025-05-23T19:59:37.748Z 0.00001 Send 8 true 3 64  2"];
    assert_eq!(rows, expected);
}
