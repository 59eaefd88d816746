//! `python.flight_recorder`: what PyTorch's Flight Recorder remembered of collectives, out of its dumps.

use crate::table::{Text, Time};

crate::table! {
    python.flight_recorder, Agent, "One row per operation in an imported dump of PyTorch's Flight Recorder. probe NAME hang judges by these rows and those of python.process_groups.";
    sort: [ts];
    examples: [
        "SELECT rank, group_name, seq, operation_type, state, input_sizes, ts FROM python.flight_recorder WHERE pending ORDER BY ts LIMIT 20",
        "SELECT group_name, seq, operation_type, COUNT(DISTINCT rank) AS entered FROM python.flight_recorder WHERE pending AND NOT p2p GROUP BY 1, 2, 3 ORDER BY MIN(ts)",
    ];
    capture: Text, "", "The dump, as python.captures calls it.";
    record: Option<i64>, "", "Number of the operation in the recorder of its process.";
    group_name: Text, "", "Name of the process group.";
    description: Option<Text>, "", "What the program calls the group; several groups may have the same.";
    seq: i64, "", "Number of the operation within its group, from 1 on as torch counts: among collectives, or for p2p among sends and receives. The same number on two ranks is the same operation.";
    p2p: bool, "", "Whether it is a send or receive.";
    operation_type: Text, "", "Name as torch records it, without the backend: all_reduce, _all_gather_base, send.";
    peer: Option<i32>, "", "Rank within the group at the other end of a send or receive.";
    backend: Option<Text>, "", "nccl, gloo.";
    state: Text, "", "scheduled, started (on the device) or completed, as far as the watchdog had noticed.";
    retired: bool, "", "Whether the recorder had stopped following it: it was done, or it had timed out.";
    pending: bool, "", "Whether it was not finished: not completed, and still followed; of NCCL also one that had timed out.";
    ts: Time, "", "When it was issued.";
    started: Option<Time>, "", "When the watchdog noticed that it had begun on the device.";
    completed: Option<Time>, "", "When the watchdog noticed that it was complete.";
    duration_ms: Option<f64>, "ms", "From begin to end on the device; NULL unless the program measures it (TORCH_NCCL_ENABLE_TIMING).";
    timeout: Option<f64>, "s", "How long it may take.";
    input_sizes: Option<Text>, "", "Shapes of what goes in, in JSON.";
    input_types: Option<Text>, "", "Their types, in JSON.";
    output_sizes: Option<Text>, "", "Shapes of what comes out, in JSON.";
    bytes: Option<i64>, "B", "The larger of what goes in and what comes out; NULL where a type has no known size.";
    function: Option<Text>, "", "Function of the innermost line of the program's own code that issued it; NULL in a dump without stacks.";
    file: Option<Text>, "", "File of that line.";
    line: Option<i32>, "", "Its number.";
    thread: Option<Text>, "", "Name of the thread that issued it.";
}
