//! `probe diagnose` of imported traces: what their devices did, without steps that an agent recorded.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::diagnosed_runs::{begins, said};
use super::suspicions::ask;
use crate::cli::support::Home;

/// Kernels of each made-up trace, after one another on one stream.
const KERNELS: usize = 60;

/// What a made-up trace has. Times are in microseconds.
#[derive(Clone)]
struct Trace {
    kernel: f64,
    /// Between a kernel and the next one.
    gap: f64,
    /// From the launch's end to the kernel's begin.
    delay: f64,
    /// A device activity in each gap: its category, its name and how long it takes.
    between: Option<(&'static str, &'static str, f64)>,
    /// The name of the kernels, and the operator that launches them.
    names: (&'static str, &'static str),
    /// The share of the step that waits for the DataLoader.
    loader: f64,
}

const BUSY: Trace =
    Trace { kernel: 100.0, gap: 1.0, delay: 50.0, between: None, names: ("relu", "aten::relu"), loader: 0.0 };

fn event(cat: &str, name: &str, tid: u32, ts: f64, dur: f64, args: Value) -> Value {
    json!({"ph": "X", "cat": cat, "name": name, "pid": 50, "tid": tid, "ts": ts, "dur": dur, "args": args})
}

/// The text of a trace of a rank.
fn text(trace: &Trace, rank: u32) -> String {
    let mut events = Vec::new();
    let (mut correlation, mut now) = (0, 1000.0);
    let mut launched = |cat: &str, name: &str, operator: &str, begins: f64, takes: f64| {
        correlation += 1;
        let launch = begins - trace.delay - 5.0;
        let device = json!({"correlation": correlation, "device": 0, "stream": 7, "collective": if name.starts_with("nccl") { "allreduce" } else { "" }});
        events.push(event("cpu_op", operator, 50, launch - 1.0, 7.0, json!({})));
        events.push(event("cuda_runtime", "cudaLaunchKernel", 50, launch, 5.0, json!({"correlation": correlation})));
        events.push(event(cat, name, 7, begins, takes, device));
    };
    for _ in 0..KERNELS {
        launched("kernel", trace.names.0, trace.names.1, now, trace.kernel);
        now += trace.kernel;
        if let Some((cat, name, takes)) = trace.between {
            launched(cat, name, "aten::copy_", now, takes);
        }
        now += trace.gap;
    }
    let waits = (now - 500.0) * trace.loader;
    events.push(event("user_annotation", "ProfilerStep#3", 50, 500.0 - waits, now - 500.0 + waits, json!({})));
    let loads = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__";
    events.push(event("user_annotation", loads, 50, 500.0 - waits, waits, json!({})));
    json!({
        "baseTimeNanoseconds": 1_767_225_600_000_000_000_i64,
        "distributedInfo": {"rank": rank, "world_size": 2},
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
        "traceEvents": events,
    })
    .to_string()
}

/// A home with a run `trace` of these traces, of a rank each.
fn imported(traces: &[&Trace]) -> Home {
    let home = Home::empty();
    let directory = home.path().join("traces");
    std::fs::create_dir(&directory).unwrap();
    for (rank, trace) in (0..).zip(traces) {
        std::fs::write(directory.join(format!("{rank}.json")), text(trace, rank)).unwrap();
    }
    let output = home.probe(["import", "--name", "trace", directory.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    home
}

fn diagnosed(traces: &[&Trace]) -> BTreeMap<String, String> {
    said(&imported(traces), ["trace", "diagnose", "--json"])
}

#[test]
fn a_busy_device_has_no_finding_and_rules_about_steps_do_not_run() {
    let said = diagnosed(&[&BUSY, &BUSY]);
    let rules: Vec<&str> = said.keys().map(String::as_str).collect();
    let of_captures = [
        "device-behind-others",
        "device-idle",
        "exposed-communication",
        "exposed-copies",
        "loader-in-captures",
        "tensor-cores-unused",
    ];
    assert_eq!(rules, of_captures);
    for rule in of_captures {
        begins(&said[rule], "silent: ");
    }
}

#[test]
fn a_page_of_an_imported_trace_says_what_was_looked_at() {
    let home = imported(&[&Trace { gap: 300.0, delay: 0.0, ..BUSY }]);
    let page = home.stdout(["trace", "diagnose"]);
    assert!(
        page.starts_with("trace@1: 1 capture of 1 process; no agent recorded steps\nverdict: rank 0: in "),
        "{page}"
    );
    let status = |severity| home.probe(["trace", "diagnose", "--fail-on", severity]).status.code();
    assert_eq!([status("warn"), status("critical")], [Some(6), Some(0)]);
    let sql = home.stdout(["trace", "diagnose", "--sql", "1"]);
    assert!(
        sql.starts_with("/* rule: device-idle */\nWITH t AS (") && sql.contains("\n-- rank  seen    severity"),
        "{sql}"
    );
    let refused = home.probe(["trace", "diagnose", "--steps", "1..5"]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("leave out --steps"), "{error}");
}

#[test]
fn a_capture_with_few_kernels_is_not_called_healthy() {
    let home = Home::empty();
    let file = home.path().join("small.json");
    let event = event("cpu_op", "aten::mm", 50, 10.0, 5.0, json!({}));
    std::fs::write(&file, json!({"traceEvents": [event]}).to_string()).unwrap();
    assert!(home.probe(["import", "--name", "small", file.to_str().unwrap()]).status.success());
    let page = home.stdout(["small", "diagnose"]);
    assert!(page.contains("\nverdict: nothing stands out in what could be decided: 0 of 6 rules\n"), "{page}");
    let status = home.probe(["small", "diagnose", "--fail-on", "note"]).status.code();
    assert_eq!(status, Some(7));
}

#[test]
fn the_worst_rank_decides_how_bad_it_is() {
    let mild = Trace { gap: 35.0, delay: 0.0, ..BUSY };
    let bad = Trace { gap: 300.0, delay: 0.0, ..BUSY };
    for traces in [[&mild, &bad], [&bad, &mild]] {
        let answer = ask(&imported(&traces), ["trace", "diagnose", "--json"]);
        let idle = answer["findings"].as_array().unwrap().iter().find(|of| of["rule"] == "device-idle").unwrap();
        assert_eq!((&idle["severity"], idle["subject"]["ranks"].as_array().unwrap().len()), (&"warn".into(), 2));
        assert!(idle["says"].as_str().unwrap().starts_with("every rank: in 5"), "{idle}");
    }
}

#[test]
fn what_is_asked_of_steps_is_not_answered_from_captures() {
    let home = imported(&[&BUSY, &BUSY]);
    for name in ["forward", "rank 1"] {
        let page = home.stdout(["trace", "diagnose", "--suspect", name]);
        assert!(page.contains("? not decided\n") && page.contains("no agent recorded steps of this run"), "{page}");
    }
    let refused = home.probe(["trace", "diagnose", "--against", "trace"]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && error.contains("so nothing is compared with it"), "{error}");
}

#[test]
fn a_device_that_waits_for_the_host_is_told_from_one_that_waits_for_other_things() {
    let late = Trace { gap: 300.0, delay: 0.0, ..BUSY };
    let found = &diagnosed(&[&late])["device-idle"];
    begins(
        found,
        "found: rank 0: in 75 % of the time that was captured the GPU had nothing to do: mostly because the host launched its work too late;",
    );
    let short = Trace { kernel: 3.0, gap: 20.0, delay: 0.0, ..BUSY };
    let found = &diagnosed(&[&short])["device-idle"];
    assert!(found.contains("too late (100 % of the kernels take less time than their launch)"), "{found}");
    // Launched in time, it waits for something else.
    let found = &diagnosed(&[&Trace { delay: 400.0, ..late }])["device-idle"];
    begins(found, "found: rank 0: in 75 % of the time that was captured the GPU had nothing to do; do: ");
}

#[test]
fn collectives_and_copies_count_where_nothing_else_runs() {
    let reduce = ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 60.0);
    let said = diagnosed(&[&Trace { gap: 60.0, between: Some(reduce), ..BUSY }]);
    begins(
        &said["exposed-communication"],
        "found: rank 0: in 38 % of the time that was captured the GPU did nothing but collectives; computation hid 0 % of",
    );
    begins(&said["device-idle"], "silent");
    let copy = ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 20.0);
    let said = diagnosed(&[&Trace { gap: 20.0, between: Some(copy), ..BUSY }]);
    begins(
        &said["exposed-copies"],
        "found: rank 0: in 17 % of the time that was captured the GPU did nothing but copy; most of the copies' time is HtoD (Pageable -> Device); do: pin_memory=True",
    );
    begins(&said["exposed-communication"], "silent");
    let read = ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 20.0);
    let found = &diagnosed(&[&Trace { gap: 20.0, between: Some(read), ..BUSY }])["exposed-copies"];
    assert!(found.contains("; do: read fewer values from the GPU (item(), cpu()"), "{found}");
}

#[test]
fn matrix_products_without_tensor_cores_are_told_from_those_with_them() {
    let said =
        |kernel| diagnosed(&[&Trace { names: (kernel, "aten::mm"), ..BUSY }]).remove("tensor-cores-unused").unwrap();
    begins(
        &said("ampere_sgemm_128x64_nn"),
        "found: rank 0: 100 % of the time of kernels is spent in matrix products and convolutions, which hardly use the tensor cores of NVIDIA A100",
    );
    let convolution =
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_tensor16x8x8_kernel_cudnn";
    begins(&said(convolution), "silent");
    begins(&said("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nn"), "silent");
}

#[test]
fn a_rank_whose_device_computes_longer_is_named() {
    let slow = Trace { kernel: 150.0, ..BUSY };
    begins(
        &diagnosed(&[&BUSY, &BUSY, &slow])["device-behind-others"],
        "found: on the GPU of rank 2, a step's computation takes 1.50 times as long as on the others'",
    );
}

#[test]
fn a_loader_that_is_waited_for_explains_an_idle_device() {
    let said = diagnosed(&[&Trace { gap: 30.0, delay: 0.0, loader: 1.0, ..BUSY }]);
    begins(
        &said["loader-in-captures"],
        "found: rank 0: 50 % of the time of captured steps is spent waiting for the DataLoader",
    );
    begins(&said["device-idle"], "silent: loader-in-captures explains it");
}
