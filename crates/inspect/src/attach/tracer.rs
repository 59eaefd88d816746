//! Whether a process is traced already: it has one tracer at a time.

use std::fs;

use probe_common::error::Error;

pub(super) fn traced(pid: i32, tracer: i32) -> Error {
    Error::denied(format!("process {tracer} traces process {pid} already"))
        .hint("a process has one debugger at a time: end gdb, strace or the other probe attach")
}

/// The process that traces `pid`.
pub(super) fn tracer(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    (tracer != 0).then_some(tracer)
}
