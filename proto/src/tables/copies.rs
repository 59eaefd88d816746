//! `python.copies`: tensors copied, in a few steps of many.

use crate::table::{Text, Time};

crate::table! {
    python.copies, Agent, "One row per copy of a tensor in the steps whose operators are watched: every stride-th, because to watch all operators is dear.";
    sort: [step, ts];
    examples: [
        "SELECT file, line, operation, direction, COUNT(*) AS copies, SUM(bytes) AS bytes, SUM(duration) AS seconds FROM python.copies GROUP BY file, line, operation, direction ORDER BY seconds DESC LIMIT 10",
        "SELECT c.step, SUM(c.duration) / ANY_VALUE(s.duration) AS share FROM python.copies c JOIN python.steps s USING (run, host, pid, step) GROUP BY c.step ORDER BY c.step",
    ];
    step: i64, "", "The step in whose time it was, as python.steps has it: what comes after an optimizer's step is the next one's.";
    stride: i32, "steps", "Operators are watched in one of so many steps: multiply by it for sums over a run.";
    ts: Time, "", "When it began.";
    duration: f64, "s", "How long the host took for it; what a device does after that is not in it.";
    operation: Text, "", "What was called: to, clone, contiguous, copy_, _to_copy (as the backward pass calls it).";
    direction: Text, "", "host to host, host to device, device to host, device to device (another one) or within device.";
    bytes: i64, "B", "Bytes written.";
    blocking: bool, "", "Not asked for with non_blocking: a copy from or to a device then keeps the host waiting.";
    contiguous: bool, "", "Both sides are contiguous: memory is copied as it lies.";
    converted: bool, "", "The type of the elements changes.";
    source: Text, "", "Device that is read: cpu, cuda:0.";
    destination: Text, "", "Device that is written.";
    file: Option<Text>, "", "File of the innermost line of the program's own code, its last 110 bytes; NULL on a thread of autograd's own.";
    line: Option<i32>, "", "That line.";
    thread: i64, "", "Operating-system id of its thread.";
}
