//! `gpu.launches`: calls of the device's runtime and driver in captures.

use crate::table::{Text, Time};

crate::table! {
    gpu.launches, Agent, "One row per call of the device's runtime or driver in a capture, also those that start nothing on the device.";
    sort: [ts];
    examples: [
        "SELECT name, COUNT(*) AS calls, SUM(duration) AS seconds FROM gpu.launches GROUP BY name ORDER BY seconds DESC",
        "SELECT step, rank, operator, name, duration FROM gpu.launches WHERE name LIKE '%Synchronize' ORDER BY duration DESC LIMIT 10",
    ];
    capture: Text, "", "Name of the capture, as in python.captures.";
    step: Option<i64>, "", "Number of the ProfilerStep that it began in; NULL outside all of them.";
    ts: Time, "", "When it began on the host.";
    duration: f64, "s", "How long it took on the host.";
    name: Text, "", "cudaLaunchKernel, hipMemcpyAsync, cuLaunchKernelEx.";
    operator: Option<Text>, "", "Innermost operator around it, with Nsight Systems the innermost NVTX range; NULL outside all of them.";
    module: Option<Text>, "", "Module of that operator.";
    thread: i64, "", "Thread, as the capture numbers it.";
    correlation: Option<i64>, "", "Number that it shares with what it launched in gpu.kernels.";
    kernels: i32, "", "Device activities that it launched; many for a CUDA graph.";
    device_duration: f64, "s", "Sum of their durations.";
    external_id: Option<i64>, "", "External id of the capture.";
}
