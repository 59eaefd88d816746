//! XPlane traces made by hand: what becomes a row, the same trace as Chrome JSON, and random bytes.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::table_rows;
use crate::{ImportedCapture, RangePatterns, TraceFile, TraceFormat, import};

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(field: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3, &mut out);
    varint(value, &mut out);
    out
}

fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3 | 2, &mut out);
    varint(content.len() as u64, &mut out);
    [out, content.to_vec()].concat()
}

fn text(field: u64, content: &str) -> Vec<u8> {
    bytes(field, content.as_bytes())
}

/// What events say, by number.
const STATS: [&str; 9] = [
    "correlation_id",
    "kernel_details",
    "memcpy_details",
    "tf_op",
    "hlo_module",
    "group_id",
    "hlo_category",
    "flops",
    "step_num",
];

fn stat(name: &str, value: &str) -> Vec<u8> {
    let index = STATS.iter().position(|stat| *stat == name).unwrap() as u64 + 1;
    let value = value.parse().map_or_else(|_| text(5, value), |value| number(4, value));
    bytes(4, &[number(1, index), value].concat())
}

/// An event: the index of its name, its offset and duration in microseconds, and its stats.
type Event<'a> = (u64, u64, u64, &'a [(&'a str, &'a str)]);

fn line(id: u64, name: &str, events: &[Event<'_>]) -> Vec<u8> {
    let events = events.iter().map(|(name, offset, duration, stats)| {
        let stats = stats.iter().flat_map(|(name, value)| stat(name, value)).collect();
        let times = [number(1, *name), number(2, offset * 1_000_000), number(3, duration * 1_000_000), stats];
        bytes(4, &times.concat())
    });
    // The time that all of them are from stands behind them here.
    bytes(3, &[number(1, id), text(2, name), events.flatten().collect(), number(3, 5000)].concat())
}

fn plane(name: &str, lines: &[Vec<u8>], names: &[&str]) -> Vec<u8> {
    let entry = |field, index: usize, name: &str| {
        let message = [number(1, index as u64), text(2, name)].concat();
        bytes(field, &[number(1, index as u64), bytes(2, &message)].concat())
    };
    let events = names.iter().enumerate().flat_map(|(index, name)| entry(4, index + 1, name));
    let stats = STATS.iter().enumerate().flat_map(|(index, name)| entry(5, index + 1, name));
    bytes(1, &[text(2, name), lines.concat(), events.collect(), stats.collect()].concat())
}

const HOST: [&str; 6] = ["train", "dense/MatMul:MatMul", "cuLaunchKernel", "MemoryAllocation", "$a.py:7 f", "tick"];
const GPU: [&str; 5] = ["gemm", "MemcpyH2D", "0", "dense/MatMul", "jit_step(12)"];
const TPU: [&str; 4] = ["while", "fusion.1", "all-reduce.2", "jit_step(12)"];

type Line<'a> = (u64, &'a str, &'a [Event<'a>]);

/// Planes with their lines and names.
const PLANES: [(&str, &[Line<'_>], &[&str]); 3] = [
    (
        "/host:CPU",
        &[(
            77,
            "python",
            &[
                (1, 10, 80, &[("step_num", "4")]),
                (5, 11, 70, &[]),
                (2, 20, 30, &[("group_id", "9")]),
                (3, 25, 5, &[("correlation_id", "3")]),
                (4, 26, 0, &[]),
                (6, 27, 0, &[]),
                (3, 60, 5, &[("correlation_id", "4")]),
            ],
        )],
        &HOST,
    ),
    (
        "/device:GPU:1",
        &[
            (
                13,
                "Stream #13(Compute)",
                &[
                    (
                        1,
                        40,
                        20,
                        &[
                            ("correlation_id", "3"),
                            ("kernel_details", "regs:38 shm:64 grid:160,1,1 block:8,4,1 occ_pct:50"),
                            ("tf_op", "dense/MatMul:"),
                            ("group_id", "9"),
                        ],
                    ),
                    (2, 70, 10, &[("correlation_id", "4"), ("memcpy_details", "kind:x size:20000 dest:1")]),
                ],
            ),
            (3, "Steps", &[(3, 0, 99, &[("group_id", "9")])]),
            (4, "TensorFlow Ops", &[(4, 40, 20, &[])]),
            (5, "XLA Modules", &[(5, 30, 40, &[])]),
        ],
        &GPU,
    ),
    (
        "/device:TPU:0",
        &[
            (
                3,
                "XLA Ops",
                &[
                    (1, 0, 50, &[]),
                    (2, 0, 20, &[("flops", "4096")]),
                    (3, 20, 20, &[("hlo_category", "all-reduce")]),
                    (2, 60, 10, &[]),
                ],
            ),
            (2, "XLA Modules", &[(4, 0, 55, &[])]),
            (4, "Async XLA Ops", &[(3, 0, 90, &[])]),
        ],
        &TPU,
    ),
];

fn trace() -> Vec<u8> {
    let planes = PLANES.iter().map(|(name, lines, names)| {
        let lines: Vec<Vec<u8>> = lines.iter().map(|(id, name, events)| line(*id, name, events)).collect();
        plane(name, &lines, names)
    });
    let environment =
        [text(2, "Task Environment"), bytes(5, &[number(1, 1), bytes(2, &text(2, "profile_start_time"))].concat())];
    let environment = [environment.concat(), bytes(6, &[number(1, 1), number(3, 1_700_000_000_000_000_000)].concat())];
    [planes.flatten().collect(), bytes(1, &environment.concat()), text(4, "node-3")].concat()
}

/// The same as xprof writes it in Chrome's JSON.
fn chrome() -> Vec<u8> {
    let mut events: Vec<Value> = Vec::new();
    for (pid, (plane, lines, names)) in PLANES.iter().enumerate() {
        events.push(json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane}}));
        for (tid, line, on_line) in *lines {
            events.push(json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": line}}));
            for (name, offset, duration, stats) in *on_line {
                let args: BTreeMap<&str, &str> = stats.iter().copied().collect();
                let name = names[*name as usize - 1];
                events.push(json!({"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": offset + 5, "dur": duration, "args": args}));
            }
        }
    }
    events.push(json!({}));
    serde_json::to_vec(&json!({"displayTimeUnit": "ns", "traceEvents": events})).unwrap()
}

fn imported(bytes: &[u8], format: TraceFormat, directory: &Path) -> probe_common::error::Result<ImportedCapture> {
    let path = directory.join("rank-5.pb");
    std::fs::write(&path, bytes).unwrap();
    let file = TraceFile { path, capture: "rank-5.pb".into(), named: true, format };
    let captures = import(&[file], "run@1", directory, &RangePatterns::default(), &mut |_| ())?.captures;
    Ok(captures.into_iter().next().unwrap())
}

fn rows(directory: &Path, table: &str, columns: &[&str]) -> Vec<String> {
    let mut rows: Vec<String> = table_rows(directory, table, columns).iter().map(|row| row.join(" ")).collect();
    rows.sort();
    rows
}

const KERNEL: [&str; 14] = [
    "device",
    "stream",
    "kind",
    "category",
    "name",
    "operator",
    "module",
    "step",
    "grid",
    "registers",
    "shared_memory",
    "occupancy",
    "bytes",
    "flops",
];

/// The rows of every table, without their times.
fn all_rows(directory: &Path) -> [Vec<String>; 4] {
    let operator = ["kind", "name", "step", "parent", "duration", "device_duration", "thread"];
    [
        rows(directory, "gpu.kernels", &KERNEL),
        rows(directory, "gpu.launches", &["name", "operator", "step", "kernels"]),
        rows(directory, "python.operators", &operator),
        rows(directory, "python.frames", &["file", "line", "function", "duration"]),
    ]
}

#[test]
fn planes_become_rows_of_devices_and_threads() {
    let directory = tempfile::tempdir().unwrap();
    let capture = imported(&trace(), TraceFormat::XPlane, directory.path()).unwrap();
    assert_eq!((capture.rank, capture.problem.as_deref(), capture.events), (Some(5), None, 18));
    assert_eq!(capture.began, Some(1_700_000_000_000_000_000 + 5000));
    let left_out: BTreeMap<&str, u64> = capture.left_out.iter().map(|(why, events)| (&**why, *events)).collect();
    let expected = [
        ("instant", 1),
        ("line that repeats the time of others", 1),
        ("memory", 1),
        ("operation around others, whose time is theirs", 1),
        ("other line or plane", 1),
        ("run of a program, which is in the module of its activities", 2),
        ("step, which is in the step of its activities", 1),
    ];
    assert_eq!(left_out, expected.into());
    let [kernels, launches, operators, frames] = all_rows(directory.path());
    let expected = [
        "0 3 kernel communication all-reduce.2  jit_step       ",
        "0 3 kernel computation fusion.1         ",
        "0 3 kernel computation fusion.1  jit_step       4096.0",
        "1 13 kernel computation gemm dense/MatMul jit_step 0 [160,1,1] 38 64 50.0  ",
        "1 13 memcpy memory Memcpy HtoD   0     20000 ",
    ];
    assert_eq!(kernels, expected);
    assert_eq!(launches, ["cuLaunchKernel  4 1", "cuLaunchKernel dense/MatMul:MatMul 4 1"]);
    let expected =
        ["annotation train 4  0.00008 0.00003 77", "operator dense/MatMul:MatMul 0 train 0.00003 0.00002 77"];
    assert_eq!(operators, expected);
    assert_eq!(frames, ["a.py 7 f 0.00007"]);
}

#[test]
fn the_same_trace_as_chrome_json_gives_the_same_rows() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    imported(&trace(), TraceFormat::XPlane, directories[0].path()).unwrap();
    imported(&chrome(), TraceFormat::Kineto, directories[1].path()).unwrap();
    assert_eq!(all_rows(directories[0].path()), all_rows(directories[1].path()));
}

#[test]
fn a_trace_is_known_by_the_name_of_its_first_plane() {
    let head = |bytes: &[u8]| TraceFormat::detect(&crate::head::FileHead { bytes: bytes.to_vec() });
    assert_eq!(head(&trace()), Some(TraceFormat::XPlane));
    assert_eq!(
        head(&bytes(1, &[number(1, 2), text(2, "/device:GPU:0"), vec![0x1a, 0xff, 0xff, 0x7f]].concat())),
        Some(TraceFormat::XPlane)
    );
    for other in [&b"\nhost"[..], b"\n", b"", b"\n\x05\x12\x03abc", b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
        assert_eq!(head(other), None, "{other:?}");
    }
}

#[test]
fn lengths_that_lie_keep_what_came_before() {
    let directory = tempfile::tempdir().unwrap();
    // A line that claims gigabytes, at the end of a plane that claims as many.
    let good = line(13, "Stream #13(Compute)", &[(1, 40, 20, &[])]);
    let mut content = [text(2, "/device:GPU:0"), good].concat();
    content.extend([0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x22, 0xff, 0xff, 0x7f]);
    let mut file = vec![0x0a];
    varint(u64::MAX >> 1, &mut file);
    let capture = imported(&[file, content].concat(), TraceFormat::XPlane, directory.path()).unwrap();
    assert_eq!((capture.rows.kernels, capture.events), (1, 2));
    let problem = capture.problem.unwrap();
    assert!(problem.starts_with("at byte ") && problem.contains("are said to follow"), "{problem}");
    assert_eq!(rows(directory.path(), "gpu.kernels", &["name"]), ["(no name in the file)"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Wherever a file ends or is changed, it is read or refused, and every event became a row or is counted.
    #[test]
    fn a_damaged_file_is_read_as_far_as_it_goes(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = trace();
        for (position, byte) in changes {
            let position = position.index(file.len());
            file[position] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let directory = tempfile::tempdir().unwrap();
        if let Ok(capture) = imported(&file, TraceFormat::XPlane, directory.path()) {
            let counts = capture.rows;
            let rows = counts.kernels + counts.launches + counts.operators + counts.frames;
            let no_events = ["description of events past the limit", "text past the limit, left out of its row"];
            let left_out = capture.left_out.iter().filter(|(why, _)| !no_events.contains(&&**why));
            prop_assert_eq!(rows as u64 + left_out.map(|(_, events)| events).sum::<u64>(), capture.events);
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let directory = tempfile::tempdir().unwrap();
        let _ = imported(&bytes, TraceFormat::XPlane, directory.path());
    }
}
