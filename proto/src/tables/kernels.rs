//! `gpu.kernels`: what devices did in captures.

use crate::table::{Text, Time};

crate::table! {
    gpu.kernels, Agent, "One row per activity of a device in a capture: kernels, copies, sets and waits.";
    sort: [ts];
    examples: [
        "SELECT name, COUNT(*) AS calls, SUM(duration) AS seconds FROM gpu.kernels WHERE kind = 'kernel' GROUP BY name ORDER BY seconds DESC LIMIT 10",
        "SELECT rank, operator, name, launch_delay, duration FROM gpu.kernels ORDER BY launch_delay DESC LIMIT 10",
    ];
    capture: Text, "", "Name of the capture, as in python.captures.";
    step: Option<i64>, "", "Number of the ProfilerStep that launched it; NULL where its launch is not in the capture, or outside all steps.";
    ts: Time, "", "When it began on the device.";
    duration: f64, "s", "How long it took on the device.";
    kind: Text, "", "kernel, memcpy, memset, sync (a stream that waits) or graph (a CUDA graph of which only the whole was recorded).";
    category: Text, "", "communication (kernels of NCCL, RCCL, oneCCL and HCCL, and those with a collective's name), memory (copies and sets), sync, else computation.";
    name: Text, "", "Name of the kernel, or Memcpy HtoD (Pageable -> Device).";
    device: Option<i32>, "", "Number of the device; NULL where the capture does not say.";
    stream: Option<i64>, "", "Stream of the device; -1 where a wait is of the whole context.";
    operator: Option<Text>, "", "Innermost operator around the launch, with Nsight Systems the innermost NVTX range; NULL where the launch is not in the capture, or in none.";
    module: Option<Text>, "", "Module of that operator.";
    correlation: Option<i64>, "", "Number that it shares with its launch in gpu.launches.";
    launch_ts: Option<Time>, "", "When its launch began on the host; NULL where the launch is not in the capture.";
    launch_duration: Option<f64>, "s", "How long the launch took on the host.";
    launch_delay: Option<f64>, "s", "From the end of the launch to the beginning on the device, at least 0.";
    launch_kernels: Option<i32>, "", "Device activities that share the launch, which is one but for CUDA graphs.";
    grid: Option<Text>, "", "Blocks of the grid: [x,y,z].";
    block: Option<Text>, "", "Threads of a block: [x,y,z].";
    registers: Option<i32>, "", "Registers per thread.";
    shared_memory: Option<i64>, "B", "Shared memory of a block.";
    blocks_per_sm: Option<f64>, "", "Blocks of the grid over the multiprocessors of the device.";
    warps_per_sm: Option<f64>, "", "Warps of the grid over the multiprocessors of the device.";
    occupancy: Option<f64>, "%", "Achieved occupancy as the profiler estimates it; in XPlane the theoretical one.";
    bytes: Option<i64>, "B", "Bytes copied or set; for a collective the larger of what goes in and what comes out.";
    bandwidth: Option<f64>, "GB/s", "Of a copy or set, as the profiler says; with Nsight Systems bytes over duration.";
    flops: Option<f64>, "FLOP", "Floating-point operations, where the capture says (XLA on TPUs).";
    bytes_accessed: Option<i64>, "B", "Bytes that it reads and writes by the compiler's count, where the capture says (XLA on TPUs).";
    collective: Option<Text>, "", "Name of the collective: allreduce, _allgather_base.";
    group_name: Option<Text>, "", "Name of its process group.";
    ranks: Option<Text>, "", "Ranks of the group, as the capture says them.";
    group_size: Option<i32>, "ranks", "Ranks in the group.";
    seq: Option<i64>, "", "Number of the collective within its group.";
    dtype: Option<Text>, "", "Type of its elements.";
    elements: Option<i64>, "", "Elements on this rank, the larger of what goes in and what comes out.";
    busbw_gbps: Option<f64>, "GB/s", "bytes over duration, times the collective's bus factor (2(n-1)/n for allreduce). It includes waiting for other ranks.";
    graph_launch: Option<bool>, "", "Whether it was launched as part of a CUDA graph; NULL where the launch is not in the capture.";
    external_id: Option<i64>, "", "External id of the capture.";
}
