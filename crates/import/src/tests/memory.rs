//! Memory events of traces: whose they are, and what a device had after them.

use serde_json::{Value, json};

use super::table_rows;
use crate::{RangePatterns, TraceFile, TraceFormat, import};

fn span(cat: &str, name: &str, tid: i64, ts: i64, dur: i64) -> Value {
    json!({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": {}})
}

fn memory(tid: i64, ts: f64, bytes: i64, device: (i64, i64), total: Option<i64>) -> Value {
    let mut args = json!({"Bytes": bytes, "Device Type": device.0, "Device Id": device.1});
    if let Some(total) = total {
        args["Addr"] = json!(4096 + ts as i64);
        args["Total Allocated"] = json!(total);
        args["Total Reserved"] = json!(if device.0 == 0 { 0 } else { 1 << 20 });
    }
    json!({"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts, "args": args})
}

#[test]
fn allocations_are_of_the_operator_module_and_step_around_them() {
    let events = [
        // In no particular order.
        memory(1, 25.5, 512, (1, 0), Some(1536)),
        span("user_annotation", "ProfilerStep#4", 1, 0, 100),
        span("python_function", "train.py(3): main", 1, 1, 98),
        span("python_function", "nn.Module: Linear_0", 1, 10, 40),
        span("cpu_op", "aten::linear", 1, 15, 30),
        span("cpu_op", "aten::addmm", 1, 20, 10),
        memory(1, 20.0, 64, (0, -1), Some(64)),
        // Where an operator ends it is over, and where one begins it is on.
        memory(1, 30.0, -64, (0, -1), Some(0)),
        memory(1, 60.0, -512, (6, 1), Some(1024)),
        // On a thread without operators, after all steps, of a device that is not known, in a file of 2021.
        memory(2, 200.0, 7, (42, 3), None),
        json!({"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5, "args": {"Device Type": 0}}),
    ];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    std::fs::write(&path, serde_json::to_vec(&json!({"traceEvents": events})).unwrap()).unwrap();
    let file = TraceFile { path, capture: "trace.json".into(), named: true, format: TraceFormat::Kineto };
    let imported = import(&[file], "run@1", directory.path(), &RangePatterns::default(), &mut |_| ()).unwrap();
    let capture = &imported.captures[0];
    assert_eq!((capture.rows.memory_events, &*capture.left_out), (5, &[("memory without its size".to_owned(), 1)][..]));
    let columns = [
        "number",
        "action",
        "device",
        "size",
        "address",
        "allocated",
        "reserved",
        "operator",
        "module",
        "stage",
        "step",
        "file",
        "line",
        "thread",
    ];
    let linear = ["Linear_0", "forward", "4", "train.py", "3", "1"];
    let rows = table_rows(directory.path(), "python.memory_events", &columns);
    let expected = [
        [&["0", "alloc", "cpu", "64", "4116", "64", "0", "aten::addmm"][..], &linear].concat(),
        [&["1", "alloc", "cuda:0", "512", "4121", "1536", "1048576", "aten::addmm"], &linear[..]].concat(),
        [&["2", "free", "cpu", "64", "4126", "0", "0", "aten::linear"], &linear[..]].concat(),
        vec!["3", "free", "hip:1", "512", "4156", "1024", "1048576", "", "", "", "4", "train.py", "3", "1"],
        vec!["4", "alloc", "type42:3", "7", "", "", "", "", "", "", "", "", "", "2"],
    ];
    assert_eq!(rows, expected);
}
