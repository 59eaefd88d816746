//! `python.sync_points`: where the host waits for a device, in a few steps of many.

use crate::table::{Text, Time};

crate::table! {
    python.sync_points, Agent, "One row per step, line and operation at which the host read the value of a tensor or waited for a device, in steps whose operators are watched.";
    sort: [step, ts];
    examples: [
        "SELECT file, line, operation, device, SUM(count) AS count, SUM(waited) AS seconds, SUM(waited * stride) AS seconds_in_run FROM python.sync_points GROUP BY file, line, operation, device ORDER BY seconds DESC LIMIT 10",
    ];
    step: i64, "", "The step that it was part of, as in python.steps: work after an optimizer's step belongs to the next step.";
    stride: i32, "steps", "Operators are watched in one of this many steps: multiply by it for sums over a run.";
    ts: Time, "", "When the first of them began.";
    operation: Text, "", "item (also float(), int() and print of a tensor), is_nonzero (if tensor:), nonzero, or a copy to the host without non_blocking: to, copy_; synchronize (torch.cuda's or torch.accelerator's), Stream.synchronize, Event.synchronize of torch.cuda.";
    device: Text, "", "Device of the tensor, or the device that the host waited for: cpu, cuda:0, or cuda when its index is not known. On cpu there is nothing to wait for, and waited is the duration of the call.";
    count: i32, "", "How often.";
    waited: f64, "s", "How long the host spent in them, in total.";
    part: Option<Text>, "", "What the thread was doing, as the parts of python.steps: data, forward, backward, optimizer, checkpoint, other, or suspended in a snippet of probe eval. NULL from older agents.";
    file: Option<Text>, "", "File of the innermost line of the program's own code, its last 110 bytes; NULL on a thread of autograd's own.";
    line: Option<i32>, "", "That line.";
    thread: i64, "", "Operating-system id of the thread.";
}
