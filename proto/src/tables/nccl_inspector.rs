//! `python.nccl_inspector`: operations that NCCL's inspector wrote down.

use crate::table::{Text, Time};

crate::table! {
    python.nccl_inspector, Agent, "One row per finished collective or point-to-point operation in an imported dump of NCCL's inspector: how fast it was, as NCCL itself measured. It has no rows of operations that are not finished, nor of those below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES.";
    sort: [dumped];
    examples: [
        "SELECT operation_type, bytes, COUNT(*) AS count, AVG(busbw_gbps) AS busbw_gbps FROM python.nccl_inspector GROUP BY operation_type, bytes ORDER BY bytes DESC",
        "SELECT communicator, seq, MAX(duration) - MIN(duration) AS spread, COUNT(*) AS ranks FROM python.nccl_inspector GROUP BY communicator, seq ORDER BY spread DESC LIMIT 10",
    ];
    capture: Text, "", "The dump, as python.captures calls it.";
    dumped: Time, "", "When it was written down, which is after it was done.";
    ts: Option<Time>, "", "When it began on the host; NULL unless the dump is verbose (NCCL_INSPECTOR_DUMP_VERBOSE), because other dumps lack it.";
    duration: Option<f64>, "s", "How long it took, by the clock that timing says.";
    timing: Option<Text>, "", "kernel_gpu, kernel_cpu or collective_cpu: whose clock.";
    communicator: Text, "", "Id of its communicator, the same on all its ranks.";
    communicator_name: Option<Text>, "", "Name of it, where the program gave one.";
    communicator_rank: Option<i32>, "", "Rank of this process in it, which is not its global rank where it has not all of them.";
    ranks: Option<i32>, "ranks", "Ranks in it.";
    nodes: Option<i32>, "", "Machines in it.";
    operation_type: Text, "", "As NCCL calls it: AllReduce, ReduceScatter, Send.";
    seq: Option<i64>, "", "Number of the operation in its communicator, the same on all ranks.";
    p2p: bool, "", "Whether it is a send or receive.";
    peer: Option<i32>, "", "The other rank of a send or receive.";
    bytes: Option<i64>, "B", "Size of its message.";
    algbw_gbps: Option<f64>, "GB/s", "bytes over duration, as the dump says.";
    busbw_gbps: Option<f64>, "GB/s", "algbw_gbps times the collective's bus factor, as the dump says.";
}
