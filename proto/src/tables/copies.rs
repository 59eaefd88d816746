//! `python.copies`: tensors copied, in a few steps of many.

use crate::table::{Text, Time};

crate::table! {
    python.copies, Agent, "One row per copy of a tensor, in steps whose operators are watched: one step in stride, because watching every operator is expensive.";
    sort: [step, ts];
    examples: [
        "SELECT file, line, operation, direction, COUNT(*) AS copies, SUM(bytes) AS bytes, SUM(duration) AS seconds FROM python.copies GROUP BY file, line, operation, direction ORDER BY seconds DESC LIMIT 10",
        "SELECT c.step, SUM(c.duration) / ANY_VALUE(s.duration) AS share FROM python.copies c JOIN python.steps s USING (run, host, pid, step) GROUP BY c.step ORDER BY c.step",
    ];
    step: i64, "", "The step that it was part of, as in python.steps: work after an optimizer's step belongs to the next step.";
    stride: i32, "steps", "Operators are watched in one of this many steps: multiply by it for sums over a run.";
    ts: Time, "", "When it began.";
    duration: f64, "s", "How long the host took. Work that a device does later is not included.";
    operation: Text, "", "What was called: to, clone, contiguous, copy_, _to_copy (as the backward pass calls it).";
    direction: Text, "", "host to host, host to device, device to host, device to device (another one) or within device.";
    bytes: i64, "B", "Bytes written.";
    blocking: bool, "", "Whether the copy was made without non_blocking: the host then waits for a copy from or to a device.";
    contiguous: bool, "", "Whether both sides are contiguous, so that memory is copied unchanged.";
    converted: bool, "", "Whether the copy changes the type of the elements.";
    source: Text, "", "Device that is read: cpu, cuda:0.";
    destination: Text, "", "Device that is written.";
    part: Option<Text>, "", "What the thread was doing, as the parts of python.steps: data, forward, backward, optimizer, checkpoint, other, or suspended in a snippet of probe eval. NULL from older agents.";
    file: Option<Text>, "", "File of the innermost line of the program's own code, its last 110 bytes; NULL on a thread of autograd's own.";
    line: Option<i32>, "", "That line.";
    thread: i64, "", "Operating-system id of its thread.";
}
