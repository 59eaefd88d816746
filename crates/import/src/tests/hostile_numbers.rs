//! Numbers at the ends of what 64 bits hold, in any place of a file that is otherwise valid.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{RangePatterns, TraceFile, TraceFormat, import};

/// A sample of each JSON format in which every number has a place.
fn samples() -> [Value; 4] {
    let event = |ph: &str, cat: &str, name: &str, args: Value| json!({"ph": ph, "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": 10, "dur": 90, "args": args});
    let launch = json!({"External id": 3, "correlation": 7});
    let kernel = json!({"External id": 3, "correlation": 7, "device": 0, "stream": 7, "bytes": 64, "grid": [1, 2, 3], "block": [4, 5, 6],
        "registers per thread": 8, "shared memory": 9, "Collective name": "allreduce", "In msg nelems": 5, "Group size": 2,
        "dtype": "Float", "Process Group Name": "0", "Seq": 4});
    let memory = json!({"Bytes": 512, "Total Allocated": 1024, "Total Reserved": 2048, "Addr": 77, "Device Type": 1, "Device Id": 0});
    let kineto = json!({"schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000_i64,
    "deviceProperties": [{"id": 0, "numSms": 100, "totalGlobalMem": 5}], "distributedInfo": {"rank": 0, "world_size": 2},
    "traceEvents": [
        event("X", "user_annotation", "ProfilerStep#4", json!({})),
        event("X", "cpu_op", "aten::mm", json!({"External id": 3, "Sequence number": 5, "Input Dims": [[2, 3]], "Fwd thread id": 0})),
        event("X", "cpu_op", "aten::add", json!({"External id": 4, "Sequence number": 6})),
        event("X", "python_function", "a.py(3): f", json!({"Python id": 1, "Python parent id": 0})),
        event("X", "python_function", "b.py(4): g", json!({"Python id": 2, "Python parent id": 1})),
        event("X", "cuda_runtime", "cudaLaunchKernel", launch.clone()),
        event("X", "cuda_driver", "cuLaunchKernel", launch),
        event("X", "kernel", "ncclDevKernel_AllReduce", kernel.clone()),
        event("X", "gpu_memcpy", "Memcpy HtoD", kernel),
        event("X", "overhead", "Buffer", json!({})),
        event("X", "overhead", "Buffer", json!({})),
        event("i", "cpu_instant_event", "[memory]", memory),
    ]});
    let entry = json!({"profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"], "record_id": 1, "pg_id": 0,
        "collective_seq_id": 5, "p2p_seq_id": 0, "op_id": 6, "time_created_ns": 10, "time_discovered_started_ns": 20,
        "time_discovered_completed_ns": 30, "duration_ms": 4, "timeout_ms": 600_000, "state": "started", "retired": false,
        "is_p2p": false, "input_sizes": [[4, 5]], "input_dtypes": ["Float"], "output_sizes": [[4, 5]], "output_dtypes": ["Float"],
        "frames": [{"name": "f", "filename": "train.py", "line": 3}]});
    let status = json!({"last_enqueued_collective": 5, "last_started_collective": 5, "last_completed_collective": 4});
    let recorder = json!({"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": status}, "entries": [entry.clone(), entry]});
    let node = |id: i64, name: &str| {
        json!({"id": id, "parent": id - 1, "name": name, "op_schema": "aten::mm(…)", "rf_id": 2, "fw_parent": 0,
            "seq_id": 7, "tid": 1, "inputs": [[5, 6, 0, 4, 4, "cpu"]], "input_shapes": [[2, 2]], "input_types": ["Tensor(float)"]})
    };
    let execution = json!({"schema": "1.0.1", "pid": 4711, "nodes": [node(2, "aten::mm"), node(3, "aten::add")]});
    let inspector = json!({"header": {"id": "0x7f", "rank": 2, "n_ranks": 8, "nnodes": 1},
        "metadata": {"dump_timestamp_us": 1_748_030_377_748_202_i64, "hostname": "node", "pid": 41},
        "coll_perf": {"coll": "AllReduce", "coll_sn": 7, "coll_msg_size_bytes": 1024, "coll_exec_time_us": 250,
            "coll_algobw_gbs": 1.5, "coll_busbw_gbs": 1.5, "event_trace_ts": {"coll_start_ts": 1_748_030_377_748_000_i64}}});
    [kineto, recorder, execution, inspector]
}

fn numbers(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Number(_) => vec![value],
        Value::Array(items) => items.iter_mut().flat_map(numbers).collect(),
        Value::Object(items) => items.values_mut().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

fn hostile_number() -> impl Strategy<Value = Value> {
    let largest = i64::MAX / 4 / 1000;
    prop_oneof![
        prop::sample::select(vec![
            i64::MIN,
            i64::MIN + 1,
            i64::MIN / 1000,
            -largest,
            -1,
            0,
            largest,
            i64::MAX / 1000,
            i64::MAX
        ])
        .prop_map(Value::from),
        prop::sample::select(vec![u64::MAX, 1 << 63]).prop_map(Value::from),
        prop::sample::select(vec![-1e300, 1e300, 9.2e18, -9.3e18, 0.5]).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn are_kept_or_left_out(
        format in 0..4_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), hostile_number()), 1..60),
    ) {
        let mut sample = samples()[format].clone();
        for (place, number) in changes {
            let mut numbers = numbers(&mut sample);
            let place = place.index(numbers.len());
            *numbers[place] = number;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank-5.json");
        std::fs::write(&path, sample.to_string()).unwrap();
        let format = [TraceFormat::Kineto, TraceFormat::FlightRecorder, TraceFormat::ExecutionTrace, TraceFormat::NcclInspector][format];
        let file = TraceFile { path, capture: "rank-5.json".into(), named: true, format };
        let imported = import(&[file], "run@1", directory.path(), &RangePatterns::default(), &mut |_| ());
        if let Err(error) = imported {
            prop_assert!(error.to_string().contains("rank-5.json"), "{}", error);
        }
    }
}

#[test]
fn samples_are_read_whole() {
    for (format, sample) in samples().iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank-5.json");
        std::fs::write(&path, sample.to_string()).unwrap();
        let format =
            [TraceFormat::Kineto, TraceFormat::FlightRecorder, TraceFormat::ExecutionTrace, TraceFormat::NcclInspector]
                [format];
        let file = TraceFile { path, capture: "rank-5.json".into(), named: true, format };
        let imported = import(&[file], "run@1", directory.path(), &RangePatterns::default(), &mut |_| ()).unwrap();
        let rows = &imported.captures[0].rows;
        let rows = rows.operators + rows.kernels + rows.nodes + rows.collectives;
        assert!(rows > 0 && imported.captures[0].problem.is_none(), "{format:?}: {:?}", imported.captures[0].problem);
    }
}
