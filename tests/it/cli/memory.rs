//! `probe import` of memory snapshots and of traces with memory, and who held what at the peak by them.

use std::process::Output;

use serde_json::json;

use crate::cli::support::Home;

/// Snapshots that `fuzz/memory_snapshots.py` makes.
const SNAPSHOT: &[u8] = include_bytes!("../../../fuzz/corpus/memory_snapshot/protocol4");

fn said(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const HELD: &str = "SELECT rank, device, origin, operator, file, line, bytes, blocks, ROUND(share, 3) AS share FROM python.memory_peak ORDER BY bytes DESC";

#[test]
fn a_snapshot_says_who_held_what_at_the_peak() {
    let home = Home::empty();
    let snapshot = home.path().join("snapshot_rank1.pickle");
    std::fs::write(&snapshot, SNAPSHOT).unwrap();
    let output = home.probe(["import", "--name", "oom", snapshot.to_str().unwrap()]);
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    said(output);
    assert!(told.contains("1 trace with 8 events became run oom@1: 8 memory events, 5 memory blocks"), "{told}");
    insta::assert_snapshot!(said(home.probe(["oom", "query", HELD, "--format", "csv"])), @r"
    rank,device,origin,operator,file,line,bytes,blocks,share
    1,cuda:0,capture,,/home/me/model.py,7,20000000,1,99.968
    1,cuda:0,capture,,/home/me/train.py,41,5000,1,0.025
    1,cuda:0,before the capture,,,,1400,,0.007
    ");
    let oom = "SELECT device, size, device_free, file, line FROM python.memory_events WHERE action = 'oom'";
    insta::assert_snapshot!(said(home.probe(["oom", "query", oom, "--format", "csv"])), @r"
    device,size,device_free,file,line
    cuda:0,85899345920,1000000000,/home/me/train.py,41
    ");
    let captures = "SELECT tool, rank_source, clock, events, memory_events, memory_blocks, left_out, complete FROM python.captures";
    insta::assert_snapshot!(said(home.probe(["oom", "query", captures, "--format", "csv"])), @r"
    tool,rank_source,clock,events,memory_events,memory_blocks,left_out,complete
    memory-snapshot,name,unix,8,8,5,1,true
    ");
}

#[test]
fn a_trace_with_memory_says_it_too() {
    let home = Home::empty();
    let memory = |ts: i64, address: i64, bytes: i64, total: i64| {
        let args = json!({"Bytes": bytes, "Addr": address, "Device Type": 1, "Device Id": 0, "Total Allocated": total, "Total Reserved": 4096});
        json!({"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": args})
    };
    let events = json!([
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 20, "args": {}},
        memory(12, 1, 600, 1600),
        memory(14, 2, 300, 1900),
        memory(15, 2, -300, 1600),
        memory(50, 3, 200, 1800),
    ]);
    let trace = home.path().join("trace.json");
    std::fs::write(&trace, json!({"traceEvents": events}).to_string()).unwrap();
    said(home.probe(["import", trace.to_str().unwrap()]));
    insta::assert_snapshot!(said(home.probe(["trace", "query", HELD, "--format", "csv"])), @r"
    rank,device,origin,operator,file,line,bytes,blocks,share
    ,cuda:0,before the capture,,,,1000,,52.632
    ,cuda:0,capture,aten::mm,,,900,2,47.368
    ");
}
