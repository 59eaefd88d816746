//! `python.sync_points`: where the host waits for a device, in a few steps of many.

use crate::table::{Text, Time};

crate::table! {
    python.sync_points, Agent, "One row per step, line and operation at which the host asked for what a tensor holds, or waited for a device, in the steps whose operators are watched.";
    sort: [step, ts];
    examples: [
        "SELECT file, line, operation, device, SUM(count) AS count, SUM(waited) AS seconds, SUM(waited * stride) AS seconds_in_run FROM python.sync_points GROUP BY file, line, operation, device ORDER BY seconds DESC LIMIT 10",
    ];
    step: i64, "", "The step in whose time it was, as python.steps has it: what comes after an optimizer's step is the next one's.";
    stride: i32, "steps", "Operators are watched in one of so many steps: multiply by it for sums over a run.";
    ts: Time, "", "When the first of them began.";
    operation: Text, "", "item (also float(), int() and print of a tensor), is_nonzero (if tensor:), nonzero, or the copy to the host that was not asked for with non_blocking: to, copy_; synchronize (torch.cuda's or torch.accelerator's), Stream.synchronize, Event.synchronize of torch.cuda.";
    device: Text, "", "Device of the tensor, or that was waited for: cpu, cuda:0, cuda where it is not known which. On cpu there is nothing to wait for, and waited is what the call took.";
    count: i32, "", "How often.";
    waited: f64, "s", "How long the host was in them, in all.";
    file: Option<Text>, "", "File of the innermost line of the program's own code, its last 110 bytes; NULL on a thread of autograd's own.";
    line: Option<i32>, "", "That line.";
    thread: i64, "", "Operating-system id of the thread.";
}
