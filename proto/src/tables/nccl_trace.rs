//! `python.nccl_trace`: collectives and point-to-point operations, of every backend.

use crate::table::{Text, Time};

crate::table! {
    python.nccl_trace, Agent, "One row per collective or point-to-point operation of torch.distributed, DDP's and FSDP's own included, whatever the backend.";
    sort: [step, ts];
    examples: [
        "SELECT operation_type, COUNT(*) AS count, AVG(duration_ms) AS avg_ms, MAX(duration_ms) AS max_ms FROM python.nccl_trace GROUP BY operation_type ORDER BY avg_ms DESC",
        "SELECT rank, seq, operation_type, bytes, duration_ms FROM python.nccl_trace WHERE step = (SELECT MAX(step) FROM python.nccl_trace) ORDER BY seq, rank",
    ];
    step: i64, "", "Optimizer steps finished when the operation was issued.";
    seq: i64, "", "Number of the operation within its process group and process, from 0. After attaching it continues from torch's number of the group.";
    operation_type: Text, "", "Name as in torch.distributed: all_reduce, all_gather_into_tensor, reduce_scatter_tensor, broadcast, barrier, send, recv.";
    group_name: Text, "", "Name of the process group.";
    group_size: i32, "ranks", "Ranks in the group.";
    bytes: i64, "B", "Size of the tensors given to it on this rank: the larger of what goes in and what comes out.";
    dtype: Option<Text>, "", "Type of its elements; NULL where it carries none (barrier).";
    async_op: bool, "", "Whether it was issued asynchronously. Torch issues every send and recv so.";
    backend: Text, "", "gloo, nccl, mpi.";
    ts: Time, "", "When it was issued.";
    duration_ms: Option<f64>, "ms", "From issue to completion, including waiting for other ranks. For a synchronous NCCL operation it begins when the device reaches the operation, by CUDA events. NULL when completion was not seen: asynchronous NCCL operations, such as DDP's, and recv of gloo.";
    status: Text, "", "completed, failed, issued (completion not seen), or pending (running for more than a second by the agent's latest report; a new row replaces this one when it is done).";
    algbw_gbps: Option<f64>, "GB/s", "bytes over duration.";
    busbw_gbps: Option<f64>, "GB/s", "algbw times the collective's bus factor (2(n-1)/n for all_reduce), comparable with the links' speed.";
}
