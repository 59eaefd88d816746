//! `probe export`: a run's timeline, read back.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::support::Home;

fn read(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap();
    let mut text = String::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
    } else {
        text = String::from_utf8(bytes).unwrap();
    }
    serde_json::from_str(&text).unwrap()
}

fn events<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
}

/// "process: track" by (pid, tid).
fn tracks(trace: &Value) -> BTreeMap<(i64, i64), String> {
    let ids = |event: &Value| (event["pid"].as_i64().unwrap(), event["tid"].as_i64().unwrap());
    let named = |name: &str| {
        let named = events(trace, "M").into_iter().filter(move |event| event["name"] == name);
        named.map(|event| (ids(event), event["args"]["name"].as_str().unwrap().to_owned())).collect::<Vec<_>>()
    };
    let processes: BTreeMap<i64, String> =
        named("process_name").into_iter().map(|((pid, _), name)| (pid, name)).collect();
    named("thread_name").into_iter().map(|(ids, name)| (ids, format!("{}: {name}", processes[&ids.0]))).collect()
}

fn track(trace: &Value, event: &Value) -> String {
    tracks(trace)[&(event["pid"].as_i64().unwrap(), event["tid"].as_i64().unwrap())].clone()
}

fn slice<'a>(trace: &'a Value, name: &str) -> &'a Value {
    events(trace, "X").into_iter().find(|event| event["name"] == name).unwrap_or_else(|| panic!("no {name}: {trace}"))
}

/// The two ends of every arrow of a kind, as tracks and times.
fn arrows(trace: &Value, kind: &str) -> Vec<[(String, f64); 2]> {
    let ends = |phase: &str| {
        let of_kind = events(trace, phase).into_iter().filter(|event| event["cat"] == kind);
        of_kind
            .map(|event| {
                (event["id"].as_str().unwrap().to_owned(), (track(trace, event), event["ts"].as_f64().unwrap()))
            })
            .collect::<BTreeMap<_, _>>()
    };
    let (begins, mut ends) = (ends("s"), ends("f"));
    let mut both: Vec<_> = begins.into_iter().map(|(id, from)| [from, ends.remove(&id).unwrap()]).collect();
    assert!(ends.is_empty());
    both.sort_by(|a, b| a[0].1.total_cmp(&b[0].1).then_with(|| a[1].0.cmp(&b[1].0)));
    both
}

#[test]
fn a_recorded_run_of_two_ranks_is_one_timeline() {
    let home = Home::recorded();
    let path = home.path().join("gpt.json");
    let output = home.probe(["gpt", "export", "-o", path.to_str().unwrap()]);
    insta::assert_snapshot!("a_recorded_run", home.shown(&output));
    let trace = read(&path);
    assert_eq!(trace["baseTimeNanoseconds"], 1_767_225_600_000_000_000_i64);
    let names: Vec<String> = tracks(&trace).into_values().collect();
    insta::assert_snapshot!("tracks_of_a_recorded_run", names.join("\n"));
    let step = slice(&trace, "step 2");
    assert_eq!((step["ts"].as_f64(), step["args"]["step"].as_i64()), (Some(2e6), Some(2)));
    // Both ranks' part of a collective, joined.
    let collectives = arrows(&trace, "collective");
    assert!(!collectives.is_empty());
    assert!(collectives.iter().all(|[from, to]| from.0.starts_with("rank 0") && to.0.starts_with("rank 1")));
    let counters: Vec<&str> = events(&trace, "C").into_iter().map(|event| event["name"].as_str().unwrap()).collect();
    for name in ["loss", "memory cpu resident", "data queue", "GPU 0 power"] {
        assert!(counters.contains(&name), "{name}: {counters:?}");
    }
    let happened: Vec<&str> = events(&trace, "i").into_iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert!(happened.contains(&"hang"), "{happened:?}");

    let one = home.path().join("one.json.gz");
    home.stdout(["gpt", "export", "--steps", "2", "--rank", "1", "-o", one.to_str().unwrap()]);
    let trace = read(&one);
    assert!(tracks(&trace).values().all(|name| !name.starts_with("rank 0")));
    assert_eq!(events(&trace, "X").into_iter().filter(|event| event["cat"] == "step").count(), 1);
    assert_eq!(slice(&trace, "step 2")["args"]["step"], 2);

    // Packets begin with field 1, and the clock comes first.
    let packets = home.path().join("gpt.pftrace");
    home.stdout(["gpt", "export", "-o", packets.to_str().unwrap()]);
    assert_eq!(std::fs::read(&packets).unwrap()[0], 0x0a);
}

fn event(cat: &str, name: &str, tid: u32, ts: f64, dur: f64, args: Value) -> Value {
    json!({"ph": "X", "cat": cat, "name": name, "pid": 50, "tid": tid, "ts": ts, "dur": dur, "args": args})
}

/// Two steps on a GPU: a forward operator and its backward on another thread, each with a launch; a graph of two kernels; and a
/// collective.
pub(crate) fn trace(rank: u32) -> String {
    let said = json!({"Collective name": "allreduce", "Process Group Name": "0", "Seq": 9, "Group size": 2, "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8});
    let mut nccl = said.clone();
    nccl.as_object_mut().unwrap().extend([("correlation".into(), 4.into()), ("stream".into(), 20.into())]);
    let late = 2.5 * f64::from(rank);
    let events = json!([
        event("user_annotation", "ProfilerStep#3", 50, 10.0, 90.0, json!({})),
        event("python_function", "train.py(12): main", 50, 5.0, 120.0, json!({"Python id": 1})),
        event("python_function", "nn.Module: Net_0", 50, 11.0, 30.0, json!({"Python id": 2, "Python parent id": 1})),
        event("cpu_op", "aten::empty", 50, 13.0, 0.5, json!({"Sequence number": 4})),
        event("cpu_op", "aten::linear", 50, 14.0, 20.0, json!({"Sequence number": 4, "Input Dims": [[2, 3], []]})),
        event("cpu_op", "aten::addmm", 50, 16.0, 12.5, json!({"Sequence number": 4})),
        event("cuda_runtime", "cudaLaunchKernel", 50, 18.0, 4.0, json!({"correlation": 1})),
        event(
            "cpu_op",
            "autograd::engine::evaluate_function: AddmmBackward0",
            51,
            60.0,
            9.0,
            json!({"Sequence number": 4})
        ),
        event("cpu_op", "AddmmBackward0", 51, 60.5, 8.0, json!({"Sequence number": 4})),
        event("cuda_runtime", "cuLaunchKernelEx", 51, 62.0, 3.0, json!({"correlation": 2})),
        event("cpu_op", "record_param_comms", 50, 69.0, 3.0, said),
        event("cuda_runtime", "cudaLaunchKernel", 50, 70.0, 1.0, json!({"correlation": 4})),
        event("cuda_runtime", "cudaGraphLaunch", 50, 94.0, 1.0, json!({"correlation": 3})),
        event("user_annotation", "ProfilerStep#4", 50, 100.0, 20.0, json!({})),
        event(
            "kernel",
            "gemm<\"float\">",
            7,
            40.0,
            10.0,
            json!({"correlation": 1, "device": 0, "stream": 7, "grid": [8, 1, 1]})
        ),
        event("kernel", "gemm_backward", 7, 70.0, 20.0, json!({"correlation": 2, "device": 0, "stream": 7})),
        event("kernel", "ncclDevKernel_AllReduce_Sum", 20, 75.0 + late, 9.0, nccl),
        event("kernel", "in_graph", 7, 95.5, 1.0, json!({"correlation": 3, "device": 0, "stream": 7, "graph id": 1})),
        event("kernel", "in_graph", 7, 97.0, 1.25, json!({"correlation": 3, "device": 0, "stream": 7, "graph id": 1})),
        event(
            "gpu_memcpy",
            "Memcpy HtoD",
            7,
            1.0,
            2.0,
            json!({"correlation": 99, "device": 0, "stream": 7, "bytes": 64})
        ),
    ]);
    let about = format!(
        "\"baseTimeNanoseconds\": 1767225600000000000, \"distributedInfo\": {{\"rank\": {rank}, \"world_size\": 2}}"
    );
    format!("{{{about}, \"traceEvents\": {events}}}")
}

/// A home with the run trace@1, imported of two ranks.
pub(crate) fn imported() -> Home {
    let home = Home::empty();
    let traces = home.path().join("traces");
    std::fs::create_dir(&traces).unwrap();
    for rank in 0..2 {
        std::fs::write(traces.join(format!("worker{rank}.json")), trace(rank)).unwrap();
    }
    home.stdout(["import", traces.to_str().unwrap()]);
    home
}

#[test]
fn an_imported_trace_has_operators_devices_and_arrows_and_other_tools_can_read_it() {
    let home = imported();
    let path = home.path().join("all.json");
    home.stdout(["trace", "export", "-o", path.to_str().unwrap()]);
    let trace = read(&path);
    let (host, other) = ("rank 0 (worker0.json): main thread, captured", "rank 0 (worker0.json): thread 51, captured");
    let stream = "rank 0 (worker0.json): GPU 0 stream 7";
    let of_rank_0 = |kind: &str| {
        let all = arrows(&trace, kind).into_iter().filter(|[from, _]| from.0.starts_with("rank 0"));
        all.map(|[from, to]| [(from.0, from.1), (to.0, to.1)]).collect::<Vec<_>>()
    };
    let at = |track: &str, ts: f64| (track.to_owned(), ts);
    // The last operator of the sequence number has the autograd node, and the outermost of backward takes it.
    assert_eq!(of_rank_0("fwdbwd"), [[at(host, 16.0), at(other, 60.0)]]);
    let launches = events(&trace, "s").into_iter().filter(|event| event["cat"] == "ac2g").count();
    let kernels = ["t", "f"].map(|phase| events(&trace, phase).into_iter().filter(|e| e["cat"] == "ac2g").count());
    assert_eq!((launches, kernels), (8, [4, 6]), "a launch of a graph goes through its kernels");
    let kernel = slice(&trace, "gemm<\"float\">");
    assert_eq!((track(&trace, kernel).as_str(), kernel["cat"].as_str()), (stream, Some("kernel")));
    assert_eq!(kernel["args"]["grid"], json!([8, 1, 1]));
    let ends: Vec<f64> = events(&trace, "f").into_iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert!(ends.contains(&40.0) && !ends.contains(&1.0), "what has no launch has no arrow: {ends:?}");
    let collectives = arrows(&trace, "collective");
    assert_eq!(collectives.len(), 1);
    assert_eq!((collectives[0][0].1, collectives[0][1].1), (75.0, 77.5));
    assert_eq!(slice(&trace, "aten::linear")["args"]["Input Dims"], json!([[2, 3], []]));
    let comms = &slice(&trace, "record_param_comms")["args"];
    assert_eq!((&comms["Collective name"], &comms["In msg nelems"]), (&json!("allreduce"), &json!(8)));
    assert_eq!(slice(&trace, "nn.Module: Net_0")["cat"], "python_function");
    assert_eq!(slice(&trace, "cuLaunchKernelEx")["cat"], "cuda_driver");

    let directory = home.path().join("ranks");
    home.stdout(["trace", "export", "--per-rank", directory.to_str().unwrap()]);
    let mut names: Vec<String> =
        std::fs::read_dir(&directory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["rank0.1767225600000.pt.trace.json.gz", "rank1.1767225600000.pt.trace.json.gz"]);
    let trace = read(&directory.join(&names[1]));
    assert_eq!(trace["distributedInfo"], json!({"rank": 1, "world_size": 2}));
    assert_eq!(slice(&trace, "ProfilerStep#3")["cat"], "user_annotation");
    // The exported file is a trace that can be imported, with the same figures.
    home.stdout(["import", "--name", "again", directory.to_str().unwrap()]);
    for sql in [
        "SELECT rank, name, step, device, stream, operator, duration FROM gpu.kernels ORDER BY rank, ts, stream",
        "SELECT rank, name, step, stage, module, self_duration, device_duration, collective FROM python.operators ORDER BY rank, ts, depth",
        "SELECT rank, computation, exposed_comm, idle, total FROM gpu.timeline ORDER BY rank",
        "SELECT rank, step, kernel, communication, cpu, other, total FROM python.step_categories ORDER BY rank, step",
    ] {
        let asked = |run: &str| home.stdout([run, "query", sql, "--format", "csv"]);
        assert_eq!(asked("trace"), asked("again"), "{sql}");
    }
}

#[test]
fn many_rows_are_read_in_pieces_and_all_of_them_are_written() {
    let home = Home::empty();
    // More than a piece has: over time, and at one instant.
    let steps = (0..20_000).map(|number| event("cpu_op", "aten::mm", 1, f64::from(number), 0.5, json!({})));
    let together =
        (0..10_000).map(|stream| event("kernel", "k", stream, 30_000.0, 1.0, json!({"device": 0, "stream": stream})));
    let events: Vec<Value> = steps.chain(together).collect();
    let file = home.path().join("many.json");
    std::fs::write(&file, json!({"traceEvents": events}).to_string()).unwrap();
    home.stdout(["import", "--name", "many", file.to_str().unwrap()]);
    let path = home.path().join("out.json");
    home.stdout(["many", "export", "-o", path.to_str().unwrap()]);
    let trace = read(&path);
    assert!(trace.get("baseTimeNanoseconds").is_none(), "when that was is not known");
    let written = events_of(&trace, "aten::mm");
    let times: Vec<f64> = written.iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert_eq!(times, (0..20_000).map(f64::from).collect::<Vec<_>>());
    assert_eq!(events_of(&trace, "k").len(), 10_000);
}

fn events_of<'a>(trace: &'a Value, name: &str) -> Vec<&'a Value> {
    events(trace, "X").into_iter().filter(|event| event["name"] == name).collect()
}

#[test]
fn what_is_not_there_or_cannot_be_written_is_said() {
    let home = Home::recorded();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("there.json"), "mine").unwrap();
    std::fs::create_dir(path("full")).unwrap();
    std::fs::write(path("full/a"), "").unwrap();
    let cases: [&[&str]; 8] = [
        &["--steps", "100..110", "-o", &path("new.json")],
        &["--rank", "0,7", "-o", &path("new.json")],
        &["-o", &path("there.json")],
        &["-o", &path("none/new.json")],
        &["-o", &path("new.txt")],
        &["--per-rank", &path("full")],
        &["--steps", "100..", "--per-rank", &path("new")],
        &[],
    ];
    let said: Vec<String> = cases
        .iter()
        .map(|words| {
            let output = home.command(["gpt", "export"].iter().chain(words.iter())).output().unwrap();
            let words = words.join(" ").replace(home.path().to_str().unwrap(), "[DIR]");
            format!("$ probe gpt export {words}\n{}", home.shown(&output))
        })
        .collect();
    insta::assert_snapshot!("export_errors", said.join("\n"));
    let mut left: Vec<_> =
        std::fs::read_dir(home.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["full", "home", "there.json"], "nothing half is left");
    assert_eq!(std::fs::read_to_string(path("there.json")).unwrap(), "mine");
    home.stdout(["gpt", "export", "--force", "-o", &path("there.json")]);
    assert!(read(Path::new(&path("there.json")))["traceEvents"].is_array());
}
