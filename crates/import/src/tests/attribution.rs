//! What encloses what, and who launched what, against a model: a tree of calls, written as events in any order.

use std::collections::BTreeMap;
use std::fs::File;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int32Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{RangePatterns, TraceFile, TraceFormat, import};

/// A call: time before its first child, whether it launches a kernel then (and for how long that runs), its children, and time
/// after the last.
#[derive(Debug, Clone)]
struct Call {
    before: i64,
    kernel: Option<i64>,
    children: Vec<Call>,
    after: i64,
}

/// Parent, depth, own time (µs), device time with and without what is within.
type Row = (Option<String>, i32, i64, i64, i64);

fn any_call() -> impl Strategy<Value = Call> {
    let leaf = (2..9_i64, prop::option::of(1..50_i64), 0..5_i64).prop_map(|(before, kernel, after)| Call {
        before,
        kernel,
        children: Vec::new(),
        after,
    });
    leaf.prop_recursive(5, 24, 4, |inner| {
        (2..9_i64, prop::option::of(1..50_i64), prop::collection::vec(inner, 0..4), 0..5_i64)
            .prop_map(|(before, kernel, children, after)| Call { before, kernel, children, after })
    })
}

/// Events and expected rows, by name.
#[derive(Default)]
struct Model {
    events: Vec<Value>,
    rows: BTreeMap<String, Row>,
    calls: u32,
}

impl Model {
    /// Takes a call that begins at `ts`; how long it takes, and the device time within.
    fn take(&mut self, call: &Call, ts: i64, parent: Option<&str>, depth: i32) -> (i64, i64) {
        self.calls += 1;
        let (name, number) = (format!("call {}", self.calls), self.calls);
        let launch = i64::from(call.kernel.is_some());
        let (mut now, mut within, mut device) = (ts + call.before, launch, call.kernel.unwrap_or(0));
        for child in &call.children {
            let (took, on_device) = self.take(child, now, Some(&name), depth + 1);
            (now, within, device) = (now + took, within + took, device + on_device);
        }
        let duration = now + call.after - ts;
        self.events
            .push(json!({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": duration}));
        if let Some(kernel) = call.kernel {
            let args = json!({"correlation": number});
            self.events.push(json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": ts + 1, "dur": 1, "args": args}));
            self.events.push(json!({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts + 100, "dur": kernel, "args": args}));
        }
        let row = (parent.map(str::to_owned), depth, duration - within, device, call.kernel.unwrap_or(0));
        self.rows.insert(name, row);
        (duration, device)
    }
}

fn micros(seconds: f64) -> i64 {
    (seconds * 1e6).round() as i64
}

fn imported(events: &[Value]) -> BTreeMap<String, Row> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    // A kernel without a launch: device times are known in any case.
    let mut events = events.to_vec();
    events.push(json!({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0, "dur": 1}));
    std::fs::write(&path, serde_json::to_vec(&json!({"traceEvents": events})).unwrap()).unwrap();
    let file = TraceFile { path, capture: "trace.json".into(), named: true, format: TraceFormat::Kineto };
    import(&[file], "run@1", directory.path(), &RangePatterns::default(), &mut |_| ()).unwrap();
    let mut rows = BTreeMap::new();
    for entry in std::fs::read_dir(directory.path().join("python.operators")).unwrap() {
        let file = File::open(entry.unwrap().path()).unwrap();
        for batch in ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap() {
            let batch = batch.unwrap();
            let column = |name: &str| batch.column_by_name(name).unwrap();
            let (names, parents) = (column("name").as_string::<i32>(), column("parent").as_string::<i32>());
            let depths = column("depth").as_primitive::<Int32Type>();
            let [own, device, device_own] = ["self_duration", "device_duration", "device_self_duration"]
                .map(|name| column(name).as_primitive::<Float64Type>());
            for row in 0..batch.num_rows() {
                let parent = parents.is_valid(row).then(|| parents.value(row).to_owned());
                let times = [own, device, device_own].map(|times| micros(times.value(row)));
                rows.insert(names.value(row).to_owned(), (parent, depths.value(row), times[0], times[1], times[2]));
            }
        }
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn calls_and_launches_are_attributed_whatever_the_order_of_events(
        calls in prop::collection::vec(any_call(), 1..4),
        order in prop::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        let mut model = Model::default();
        let mut now = 10;
        for call in &calls {
            now += model.take(call, now, None, 0).0;
        }
        let mut events = model.events;
        for (position, index) in order.iter().enumerate().take(events.len()) {
            let other = index.index(events.len());
            events.swap(position, other);
        }
        prop_assert_eq!(imported(&events), model.rows);
    }
}
