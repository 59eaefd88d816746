//! Traces that processes of a live run wrote: whose rows they are, their modules, and how much of them becomes rows.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use arrow::array::{Array, AsArray};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use probe_store::ProcessIdentity;
use probe_store::row_files::RowFiles;
use serde_json::{Value, json};

use crate::{ImportedCapture, import_of_process};

fn process() -> ProcessIdentity {
    ProcessIdentity {
        run: "gpt@1".into(),
        host: "node".into(),
        pid: 4711,
        rank: Some(3),
        local_rank: Some(1),
        world_size: Some(4),
        role: "trainer".into(),
    }
}

fn taken(events: &[Value], max_text: u64, directory: &Path) -> ImportedCapture {
    let path = directory.join("4711.json");
    // What the file says of ranks is not asked.
    let text = json!({"distributedInfo": {"rank": 0}, "traceEvents": events});
    std::fs::write(&path, serde_json::to_vec(&text).unwrap()).unwrap();
    import_of_process(&path, ("capture-1/rank3", &process()), (max_text, 0.25), &mut RowFiles::new(directory, "test"))
        .unwrap()
}

/// Of each operator by its name: its module and stage.
fn modules(directory: &Path) -> BTreeMap<String, (Option<String>, Option<String>)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory.join("python.operators")).unwrap() {
        let file = File::open(entry.unwrap().path()).unwrap();
        for batch in ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap() {
            let batch = batch.unwrap();
            let text = |name: &str, row: usize| {
                let column = batch.column_by_name(name).unwrap().as_string::<i32>();
                column.is_valid(row).then(|| column.value(row).to_owned())
            };
            for row in 0..batch.num_rows() {
                assert_eq!(text("capture", row).as_deref(), Some("capture-1/rank3"));
                found.insert(text("name", row).unwrap(), (text("module", row), text("stage", row)));
            }
        }
    }
    found
}

fn operator(name: &str, ts: i64, dur: i64, sequence: Option<i64>) -> Value {
    let args = sequence.map_or(json!({}), |sequence| json!({"Sequence number": sequence}));
    json!({"ph": "X", "cat": "cpu_op", "name": name, "pid": 4711, "tid": 4711, "ts": ts, "dur": dur, "args": args})
}

#[test]
fn operators_have_the_modules_of_the_agent_s_ranges_and_nodes_those_of_their_forward_work() {
    let range = |module: &str, ts, dur| operator(&format!("probe_agent.module: {module}"), ts, dur, None);
    let node =
        |name: &str, ts, sequence| operator(&format!("autograd::engine::evaluate_function: {name}"), ts, 8, sequence);
    let frame = json!({"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "pid": 4711, "tid": 4711,
        "ts": 12, "dur": 20, "args": {"Python id": 1}});
    let events = [
        json!({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 4711, "tid": 4711, "ts": 0, "dur": 200}),
        range("GPT", 5, 60),
        range("layers.0.up", 10, 30),
        frame,
        operator("aten::detach", 14, 2, Some(40)),
        operator("aten::addmm", 18, 10, Some(40)),
        operator("aten::gelu", 45, 5, Some(41)),
        // Beside the model.
        operator("aten::rand", 70, 5, Some(42)),
        node("GeluBackward0", 100, Some(41)),
        operator("aten::gelu_backward", 101, 5, None),
        node("AddmmBackward0", 110, Some(40)),
        node("torch::autograd::AccumulateGrad", 120, None),
        operator("aten::add_", 121, 5, None),
    ];
    let directory = tempfile::tempdir().unwrap();
    let capture = taken(&events, u64::MAX, directory.path());
    assert_eq!((capture.rank, capture.rows.operators, capture.rows.frames), (Some(3), 10, 1), "ranges are no rows");
    let found = modules(directory.path());
    let of = |name: &str| {
        let (module, stage) = &found[name];
        (module.as_deref(), stage.as_deref())
    };
    assert_eq!(of("aten::addmm"), (Some("layers.0.up"), Some("forward")));
    assert_eq!(of("aten::gelu"), (Some("GPT"), Some("forward")));
    assert_eq!(of("aten::rand"), (None, None));
    assert_eq!(of("aten::gelu_backward"), (Some("GPT"), Some("backward")));
    assert_eq!(of("autograd::engine::evaluate_function: AddmmBackward0"), (Some("layers.0.up"), Some("backward")));
    assert_eq!(of("aten::add_"), (Some("layers.0.up"), Some("backward")), "of the node before");
}

#[test]
fn events_past_the_bytes_of_a_capture_are_counted_whole() {
    let events: Vec<Value> = (0..100).map(|number| operator(&format!("op {number}"), number * 10, 5, None)).collect();
    let directory = tempfile::tempdir().unwrap();
    let all = taken(&events, u64::MAX, directory.path());
    assert_eq!((all.rows.operators, all.left_out.len()), (100, 0));
    let directory = tempfile::tempdir().unwrap();
    let half = taken(&events, all.text_bytes / 2, directory.path());
    let left_out: u64 = half.left_out.iter().map(|(_, events)| events).sum();
    assert!((40..60).contains(&half.rows.operators), "{half:?}");
    assert_eq!((half.events, half.rows.operators as u64 + left_out), (100, 100));
    assert_eq!(
        (&*half.left_out[0].0, half.text_bytes, half.problem),
        ("past the bytes of a capture", all.text_bytes, None)
    );
}
