//! `probe import`: a trace becomes a run that is asked like any other.

use std::io::Write;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::run::until;
use crate::cli::support::Home;

fn event(cat: &str, name: &str, tid: u32, ts: f64, dur: f64, args: Value) -> Value {
    json!({"ph": "X", "cat": cat, "name": name, "pid": 50, "tid": tid, "ts": ts, "dur": dur, "args": args})
}

/// A step with a module whose forward and backward each launch a kernel, on two threads; a CUDA graph of two kernels; and a
/// kernel that was launched before the capture. Device events come first, and what is said of the file last.
fn trace(rank: u32) -> String {
    let events = json!([
        event("kernel", "gemm", 7, 40.0, 10.0, json!({"correlation": 1, "device": 0, "stream": 7, "grid": [8, 1, 1], "est. achieved occupancy %": 25})),
        event("kernel", "gemm_backward", 7, 70.0, 20.0, json!({"correlation": 2, "device": 0, "stream": 7})),
        event("kernel", "in_graph", 7, 95.5, 1.0, json!({"correlation": 3, "device": 0, "stream": 7, "graph id": 1})),
        event("kernel", "in_graph", 7, 97.0, 1.25, json!({"correlation": 3, "device": 0, "stream": 7, "graph id": 1})),
        event("kernel", "before", 7, 1.0, 2.0, json!({"correlation": 99, "device": 0, "stream": 7})),
        event("user_annotation", "ProfilerStep#3", 50, 10.0, 88.0, json!({})),
        event("python_function", "train.py(12): main", 50, 5.0, 94.0, json!({"Python id": 1})),
        event("python_function", "nn.Module: Net_0", 50, 11.0, 30.0, json!({"Python id": 2, "Python parent id": 1})),
        event("python_function", "nn.Module: Linear_0", 50, 12.0, 28.0, json!({"Python id": 3, "Python parent id": 2})),
        event("cpu_op", "aten::linear", 50, 14.0, 20.0, json!({"Sequence number": 4, "Input Dims": [[2, 3], []]})),
        event("cpu_op", "aten::addmm", 50, 16.0, 12.5, json!({"Sequence number": 4})),
        event("cuda_runtime", "cudaLaunchKernel", 50, 18.0, 4.0, json!({"correlation": 1})),
        event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 51, 60.0, 9.0, json!({"Sequence number": 4})),
        event("cpu_op", "aten::mm", 51, 61.0, 7.0, json!({})),
        event("cuda_runtime", "cudaLaunchKernel", 51, 62.0, 3.0, json!({"correlation": 2})),
        event("cuda_runtime", "cudaGraphLaunch", 50, 94.0, 1.0, json!({"correlation": 3})),
        {"ph": "M", "name": "process_name", "pid": 50, "tid": 0, "ts": 0.0, "args": {"name": "python"}},
    ]);
    // Written by hand, for a map would put the events last.
    let about = format!(
        "\"baseTimeNanoseconds\": 1767225600000000000, \"distributedInfo\": {{\"rank\": \"{rank}\", \"world_size\": 2}}"
    );
    format!("{{\"traceEvents\": {events}, {about}}}")
}

fn asked(home: &Home, name: &str, sql: &str) -> Vec<Vec<String>> {
    let output = home.probe([name, "query", sql, "--format", "csv"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn an_import_that_a_signal_ends_leaves_nothing() {
    let home = Home::empty();
    // More than can be read before the signal: a gzip file whose 400 equal members have 8000 events each.
    let mut random = 1_u64;
    let mut events = String::new();
    for _ in 0..8000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (ts, name) = ((random >> 16) as f64 / 1e6, format!("aten::op_{:x}", random >> 32));
        events.push_str(&event("cpu_op", &name, 50, ts, 1.0, json!({})).to_string());
        events.push(',');
    }
    let packed = |text: &str| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        packed.finish().unwrap()
    };
    let path = home.path().join("long.json.gz");
    let members = [packed("{\"traceEvents\": ["), packed(&events).repeat(400), packed("{}]}")];
    std::fs::write(&path, members.concat()).unwrap();
    for (signal, status) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let mut child = home.command(["import", path.to_str().unwrap()]).stderr(Stdio::piped()).spawn().unwrap();
        let runs = || std::fs::read_dir(home.directories().runs()).map_or(0, Iterator::count);
        until("it to begin", || {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            runs() > 0
        });
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(&format!("ended by {signal}: nothing is left of run trace@1")), "{said}");
        assert_eq!(runs(), 0);
    }
}

#[test]
fn a_file_with_two_paths_is_read_once_and_one_without_bytes_is_empty() {
    let home = Home::empty();
    let traces = home.path().join("traces");
    std::fs::create_dir(&traces).unwrap();
    let file = traces.join("a.json");
    std::fs::write(&file, trace(0)).unwrap();
    std::os::unix::fs::symlink("a.json", traces.join("latest.json")).unwrap();
    let again = traces.join("../traces/a.json");
    let output = home.probe(["import", "--name", "once", traces.to_str().unwrap(), again.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 trace with 17 events became run once@1: 5 operators"), "{said}");
    assert!(said.contains("latest.json is one of the other files"), "{said}");

    let empty = home.path().join("nothing.json");
    std::fs::write(&empty, "").unwrap();
    let said = String::from_utf8(home.probe(["import", "--name", "none", empty.to_str().unwrap()]).stderr).unwrap();
    assert!(said.contains("nothing.json: it is empty"), "{said}");
}

#[test]
fn a_directory_of_ranks_is_one_run_with_modules_steps_and_launches() {
    let home = Home::empty();
    let traces = home.path().join("traces");
    std::fs::create_dir(&traces).unwrap();
    std::fs::write(traces.join("a.json"), trace(0)).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(trace(1).as_bytes()).unwrap();
    std::fs::write(traces.join("b.json.gz"), packed.finish().unwrap()).unwrap();
    std::fs::write(traces.join("other.json"), "{\"schema\": 1}").unwrap();
    std::fs::write(traces.join("notes.txt"), "step 3 is slow").unwrap();
    std::fs::write(traces.join("empty"), "").unwrap();
    let output = home.probe(["import", "--name", "both", traces.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("2 traces with 34 events became run both@1: 10 operators, 10 device activities, 6 launches"),
        "{said}"
    );
    assert!(said.contains("other.json has no events to import"), "{said}");
    assert!(said.contains("left out: 2 files have no known format (empty is the first)"), "{said}");

    let kernels = asked(
        &home,
        "both",
        "SELECT rank, name, operator, module, step, launch_delay * 1e6, launch_kernels, graph_launch FROM gpu.kernels WHERE rank = 1 ORDER BY ts",
    );
    let expected = [
        ["1", "before", "", "", "", "", "", ""],
        ["1", "gemm", "aten::addmm", "Net_0.Linear_0", "3", "18.0", "1", "false"],
        ["1", "gemm_backward", "aten::mm", "Net_0.Linear_0", "3", "5.0", "1", "false"],
        ["1", "in_graph", "", "", "3", "0.5", "2", "true"],
        ["1", "in_graph", "", "", "3", "2.0", "2", "true"],
    ];
    assert_eq!(kernels, expected);
    let operators = asked(
        &home,
        "both",
        "SELECT name, stage, module, parent, self_duration * 1e6, device_duration * 1e6, device_self_duration * 1e6, file, line FROM python.operators WHERE rank = 0 AND kind = 'operator' ORDER BY ts",
    );
    let expected = [
        ["aten::linear", "forward", "Net_0.Linear_0", "ProfilerStep#3", "7.5", "10.0", "0.0", "train.py", "12"],
        ["aten::addmm", "forward", "Net_0.Linear_0", "aten::linear", "8.5", "10.0", "10.0", "train.py", "12"],
        [
            "autograd::engine::evaluate_function: AddmmBackward0",
            "backward",
            "Net_0.Linear_0",
            "",
            "2.0",
            "20.0",
            "0.0",
            "",
            "",
        ],
        [
            "aten::mm",
            "backward",
            "Net_0.Linear_0",
            "autograd::engine::evaluate_function: AddmmBackward0",
            "4.0",
            "20.0",
            "20.0",
            "",
            "",
        ],
    ];
    assert_eq!(operators, expected);
    let frames = asked(
        &home,
        "both",
        "SELECT id, parent, function, module, self_duration * 1e6 FROM python.frames WHERE rank = 0 ORDER BY id",
    );
    assert_eq!(
        frames,
        [
            ["1", "", "main", "", "64.0"],
            ["2", "1", "Net_0", "Net_0", "2.0"],
            ["3", "2", "Linear_0", "Net_0.Linear_0", "28.0"]
        ]
    );
    let captures = asked(
        &home,
        "both",
        "SELECT capture, rank, rank_source, steps, events, left_out, without_launch, complete, clock FROM python.captures ORDER BY rank",
    );
    assert_eq!(captures[1], ["b.json.gz", "1", "file", "1", "17", "1", "1", "true", "unix"]);
    assert_eq!(
        asked(&home, "both", "SELECT MIN(ts) FROM python.operators")[0],
        ["2026-01-01 00:00:00.000010Z"].map(|t| t.replace(' ', "T"))
    );
    let listed = String::from_utf8(home.probe(["runs"]).stdout).unwrap();
    assert!(listed.contains("both@1"), "{listed}");
}

#[test]
fn a_file_that_ends_too_early_is_read_to_there_and_one_that_is_no_trace_leaves_nothing() {
    let home = Home::empty();
    let text = trace(0);
    let file = home.path().join("rank-7.json");
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let output = home.probe(["import", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("rank-7.json was read in part: at byte"), "{said}");
    let captures = asked(
        &home,
        "trace",
        "SELECT rank, rank_source, complete, clock, problem LIKE 'at byte % after % events: the text ends within%' FROM python.captures",
    );
    assert_eq!(captures, [["7", "name", "false", "relative", "true"]]);

    std::fs::write(&file, "import torch").unwrap();
    let output = home.probe(["import", "--name", "none", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("its format is not known") && said.contains("hint: probe import reads"), "{said}");
    assert!(!home.directories().runs().join("none@1").exists());
    let output = home.probe(["import", "--name", "none", "--format", "kineto", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("has no events to import: at byte 0 of its text") && said.contains("hint:"), "{said}");
    let output = home.probe(["import", "--format", "xml", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("invalid value 'xml' for '--format <FORMAT>'")
            && said.contains("execution-trace, flight-recorder"),
        "{said}"
    );
}

#[test]
fn a_page_of_nsight_compute_is_metrics_and_advice() {
    let home = Home::empty();
    let page = home.path().join("gemm.csv");
    let kernel =
        "\"0\",\"41\",\"python3\",\"node\",\"gemm\",\"1\",\"7\",\"(256, 1, 1)\",\"(1024, 1, 1)\",\"0\",\"9.0\"";
    let text = format!(
        "==PROF== Connected to process 41\nstep 1\n\
         \"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\
         \"Device\",\"CC\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\",\"Rule Name\",\"Rule Type\",\
         \"Rule Description\",\"Estimated Speedup Type\",\"Estimated Speedup\"\n\
         {kernel},\"Speed Of Light\",\"Duration\",\"ns\",\"21,058,944\",\n\
         {kernel},\"Speed Of Light\",\"Memory Throughput\",\"%\",\"61.84\",\n\
         {kernel},\"SpeedOfLight\",\"\",\"\",\"\",\"SOLBottleneck\",\"OPT\",\"Memory is busy.\",\"global\",\"45.14\"\n"
    );
    std::fs::write(&page, text).unwrap();
    let output = home.probe(["import", "--name", "gemm", page.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && said.contains("1 trace with 3 events became run gemm@1: 3 kernel metrics"),
        "{said}"
    );
    let metrics = asked(
        &home,
        "gemm",
        "SELECT kernel, metric, value, unit, grid FROM gpu.kernel_metrics WHERE value > 0 ORDER BY value",
    );
    assert_eq!(metrics.len(), 2);
    assert_eq!(metrics[1][..4], ["gemm", "Duration", "21058944.0", "ns"]);
    let advice = asked(
        &home,
        "gemm",
        "SELECT pid, rule, rule_type, advice, speedup FROM gpu.kernel_metrics WHERE metric IS NULL",
    );
    assert_eq!(advice, [["41", "SOLBottleneck", "OPT", "Memory is busy.", "45.14"]]);
    let captures =
        asked(&home, "gemm", "SELECT tool, clock, events, metrics, left_out, reasons, complete FROM python.captures");
    assert_eq!(captures[0][..5], ["nsight-compute", "none", "3", "3", "2"]);
}

#[test]
fn an_export_of_nsight_systems_is_kernels_calls_and_spans_with_steps_by_a_pattern() {
    let home = Home::empty();
    let export = home.path().join("report.sqlite");
    let thread = 1_i64 << 48 | 41 << 24 | 42;
    let sql = format!(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
         INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000'), (3, 'iteration 7');
         CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
         INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1767225600000000000);
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
             correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5000, 7000, 0, 7, 1, {pid}, 1);
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (2000, 3000, {thread}, 1, 2);
         CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, globalTid INTEGER, text TEXT, textId INTEGER);
         INSERT INTO NVTX_EVENTS VALUES (1000, 9000, 59, {thread}, NULL, 3), (1500, 4000, 59, {thread}, 'forward', NULL);",
        pid = thread >> 24 << 24
    );
    rusqlite::Connection::open(&export).unwrap().execute_batch(&sql).unwrap();
    let import = |name: &str, pattern: &str| {
        home.probe(["import", "--name", name, "--step-range", pattern, export.to_str().unwrap()])
    };
    let output = import("nsys", r"^iteration (\d+)$");
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "1 trace with 4 events became run nsys@1: 1 device activity, 1 launch, 2 spans";
    assert!(output.status.success() && said.contains(expected), "{said}");
    let kernels = asked(&home, "nsys", "SELECT name, operator, step, launch_delay * 1e6, pid FROM gpu.kernels");
    assert_eq!(kernels, [["gemm", "forward", "7", "2.0", "41"]]);
    let spans = asked(&home, "nsys", "SELECT name, parent, depth, step, ts FROM python.spans ORDER BY ts");
    assert_eq!(spans[0], ["iteration 7", "", "0", "7", "2026-01-01T00:00:00.000001Z"]);
    assert_eq!(spans[1][..4], ["forward", "iteration 7", "1", "7"]);
    let captures = asked(&home, "nsys", "SELECT tool, steps, spans, kernels, launches, clock FROM python.captures");
    assert_eq!(captures, [["nsight-systems", "1", "2", "1", "1", "unix"]]);

    let output = import("broken", "(");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("( is no regular expression") && said.contains("hint:"), "{said}");
}

/// Two ranks in an all_reduce that the second comes to late, both waiting for their device.
#[test]
fn the_critical_path_goes_to_the_rank_that_comes_last() {
    let home = Home::empty();
    let traces = home.path().join("traces");
    std::fs::create_dir(&traces).unwrap();
    for (rank, late) in [(0, 0.0), (1, 200.0)] {
        let reduce = json!({"correlation": 2, "stream": 20, "device": rank, "Collective name": "allreduce", "Process Group Name": "0", "Seq": 5});
        let events = json!([
            event("user_annotation", "ProfilerStep#3", 50, 0.0, 1000.0, json!({})),
            event("cpu_op", "aten::mm", 50, 10.0 + late, 30.0, json!({})),
            event("cuda_runtime", "cudaLaunchKernel", 50, 20.0 + late, 5.0, json!({"correlation": 1})),
            event("kernel", "gemm", 7, 30.0 + late, 100.0, json!({"correlation": 1, "stream": 7, "device": rank})),
            event("cuda_runtime", "cudaLaunchKernel", 50, 70.0 + late, 5.0, json!({"correlation": 2})),
            event("kernel", "ncclDevKernel_AllReduce", 20, 130.0 + late, 770.0 - late, reduce),
            event("cuda_runtime", "cudaDeviceSynchronize", 50, 300.0, 620.0, json!({})),
        ]);
        let about = json!({"rank": rank, "world_size": 2});
        let text = json!({"baseTimeNanoseconds": 1_767_225_600_000_000_000_i64, "distributedInfo": about, "traceEvents": events});
        std::fs::write(traces.join(format!("{rank}.json")), text.to_string()).unwrap();
    }
    let output = home.probe(["import", "--name", "late", traces.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = asked(
        &home,
        "late",
        "SELECT rank, location, category, name, waits_for, ROUND(seconds * 1e6, 3) FROM python.critical_path WHERE seconds > 5e-5 ORDER BY rank, seconds DESC",
    );
    let expected = [
        ["0", "device", "communication", "ncclDevKernel_AllReduce", "", "570.0"],
        ["0", "device", "other rank", "ncclDevKernel_AllReduce", "1", "200.0"],
        ["0", "device", "computation", "gemm", "", "100.0"],
        ["0", "host", "other", "", "", "90.0"],
        ["1", "device", "communication", "ncclDevKernel_AllReduce", "", "570.0"],
        ["1", "host", "other", "", "", "290.0"],
        ["1", "device", "computation", "gemm", "", "100.0"],
    ];
    assert_eq!(path, expected);
    let whole = asked(
        &home,
        "late",
        "SELECT rank, ROUND(SUM(percent), 6) FROM python.critical_path GROUP BY rank ORDER BY rank",
    );
    assert_eq!(whole, [["0", "100.0"], ["1", "100.0"]]);
}

/// An operator within a step of a process.
fn of_process(pid: u32, step: &str, ts: f64) -> [Value; 2] {
    let of = |cat, name, ts, dur| {
        let mut event = event(cat, name, 1, ts, dur, json!({}));
        event["pid"] = json!(pid);
        event
    };
    [of("user_annotation", step, ts, 10.0), of("cpu_op", "aten::mul", ts + 1.0, 4.0)]
}

#[test]
fn a_file_of_several_processes_is_a_capture_for_each_if_it_has_no_activities_of_devices() {
    let home = Home::empty();
    let name =
        json!({"ph": "M", "name": "process_name", "pid": 60, "tid": 0, "args": {"name": "rank 3 (host, pid 60)"}});
    let steps = [of_process(50, "ProfilerStep#2", 0.0), of_process(60, "ProfilerStep#2", 3.0)];
    let more = of_process(60, "ProfilerStep#3", 20.0);
    let mut events: Vec<Value> = steps.into_iter().chain([more]).flatten().chain([name]).collect();
    let file = home.path().join("both_rank1.json");
    let path = file.to_str().unwrap();
    std::fs::write(&file, json!({ "traceEvents": events }).to_string()).unwrap();
    let output = home.probe(["import", "--name", "both", path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let captures = asked(&home, "both", "SELECT capture, rank, steps, events FROM python.captures ORDER BY capture");
    assert_eq!(captures, [["both_rank1.json/50", "", "1", "2"], ["both_rank1.json/60", "3", "2", "5"]]);
    let steps = "SELECT pid, s.step, ROUND(total * 1e6) FROM python.step_categories s \
                 JOIN python.captures c ON s.capture = c.capture ORDER BY 1, 2";
    assert_eq!(asked(&home, "both", steps), [["50", "2", "10.0"], ["60", "2", "10.0"], ["60", "3", "10.0"]]);

    events.push(event("kernel", "gemm", 7, 40.0, 10.0, json!({"correlation": 1, "device": 0, "stream": 7})));
    std::fs::write(&file, json!({ "traceEvents": events }).to_string()).unwrap();
    let output = home.probe(["import", "--name", "none", path]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(
            "operators of 2 processes (50, 60), and nothing says which of them its device activities belong to"
        ),
        "{said}"
    );
}

#[test]
fn ranges_that_match_are_steps_of_any_trace_and_each_is_a_row_of_categories() {
    let home = Home::empty();
    let events = [of_process(50, "train", 0.0), of_process(50, "train", 12.0)].concat();
    let file = home.path().join("train.json");
    std::fs::write(&file, json!({ "traceEvents": events }).to_string()).unwrap();
    let path = file.to_str().unwrap();
    let sql = "SELECT step, ROUND(cpu * 1e6), ROUND(total * 1e6) FROM python.step_categories ORDER BY 1";
    assert!(home.probe(["import", "--name", "matched", path, "--step-range", "^train$"]).status.success());
    assert_eq!(asked(&home, "matched", sql), [["0", "10.0", "10.0"], ["1", "10.0", "10.0"]]);
    assert!(home.probe(["import", "--name", "whole", path]).status.success());
    assert_eq!(asked(&home, "whole", sql), [["0", "20.0", "22.0"]]);
}

#[test]
fn what_a_profiler_recorded_of_a_thread_nests_as_before_in_files_for_its_readers() {
    let home = Home::empty();
    // A range begins within the function that begins it, and ends within the one that ends it.
    let events = [
        event("python_function", "train.py(3): main", 50, 0.0, 100.0, json!({"Python id": 1})),
        event("python_function", "torch/autograd/profiler.py(1): __enter__", 50, 1.0, 3.0, json!({"Python id": 2})),
        event("user_annotation", "Optimizer.step#SGD.step", 50, 2.0, 50.0, json!({})),
        event("cpu_op", "aten::mul", 50, 10.0, 20.0, json!({})),
        event("python_function", "torch/autograd/profiler.py(9): __exit__", 50, 51.0, 3.0, json!({"Python id": 3})),
    ];
    let file = home.path().join("rank0.json");
    std::fs::write(&file, json!({ "traceEvents": events }).to_string()).unwrap();
    assert!(home.probe(["import", "--name", "first", file.to_str().unwrap()]).status.success());
    let directory = home.path().join("ranks");
    let output = home.probe(["first", "export", "--per-rank", directory.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(home.probe(["import", "--name", "again", directory.to_str().unwrap()]).status.success());
    let sql = "SELECT name, stage, depth, ROUND(self_duration * 1e6) FROM python.operators ORDER BY name";
    let expected = [["Optimizer.step#SGD.step", "step", "0", "30.0"], ["aten::mul", "step", "1", "20.0"]];
    assert_eq!(asked(&home, "first", sql), expected);
    assert_eq!(asked(&home, "again", sql), expected);

    // Windows of one process without a rank are no ranks.
    for name in ["a.json", "b.json"] {
        std::fs::copy(&file, home.path().join(name)).unwrap();
    }
    let both = ["a.json", "b.json"].map(|name| home.path().join(name).to_str().unwrap().to_owned());
    assert!(home.probe(["import", "--name", "windows", &both[0], &both[1]]).status.success());
    let output = home.probe(["windows", "export", "--per-rank", home.path().join("more").to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the rank of 2 of 2 processes and captures of windows@1 is not known"), "{said}");
}
