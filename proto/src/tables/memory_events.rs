//! `python.memory_events`: what allocators did, in captures and memory snapshots.

use crate::table::{Text, Time};

crate::table! {
    python.memory_events, Agent, "One row per allocation, free, segment operation or out-of-memory error of a capture: what torch.profiler recorded of all devices, the host included, or what a memory snapshot has as the history of CUDA's caching allocator.";
    sort: [ts];
    examples: [
        "SELECT capture, device, operator, SUM(CASE WHEN action = 'alloc' THEN size ELSE -size END) AS kept FROM python.memory_events WHERE action IN ('alloc', 'free') GROUP BY capture, device, operator ORDER BY kept DESC LIMIT 10",
        "SELECT ts, device, size, device_free, file, line FROM python.memory_events WHERE action = 'oom' ORDER BY ts",
    ];
    capture: Text, "", "Name of the capture, as in python.captures.";
    number: i64, "", "Its order among the memory events of the device in the capture, the first first; unique in the capture.";
    step: Option<i64>, "", "Step that it was in; NULL outside all of them, and in a snapshot without steps.";
    ts: Option<Time>, "", "When it was, from 1970 on where python.captures.clock is unix. NULL in snapshots that are older than such times.";
    action: Text, "", "alloc or free; in a snapshot free_requested (by the program) and free_completed (other streams have finished with it, too) for free, and segment_alloc, segment_free, segment_map, segment_unmap (of the memory that the allocator itself holds), oom, snapshot, annotate.";
    device: Text, "", "cpu, cuda:0, …; of a ROCm trace hip:0, ….";
    address: Option<i64>, "", "Address of the memory; NULL where the trace has none.";
    size: Option<i64>, "B", "Bytes, never negative. In a snapshot those that were requested, without the allocator's rounding; for an oom, those that could not be allocated; for a snapshot, all that were active.";
    stream: Option<i64>, "", "Stream, as the snapshot numbers it; NULL in a trace of torch.profiler.";
    allocated: Option<i64>, "B", "Allocated on the device after it. torch.profiler reports it (of the host, only what was allocated since a profiler first ran); in a snapshot it is the sum of what was requested, computed backwards from the blocks at its end; NULL if the result would be negative, or if blocks or events are missing.";
    reserved: Option<i64>, "B", "Held by the allocator on the device after it; 0 for the host. In a snapshot computed backwards from the segments at its end; NULL if the result would be negative, or if events are missing.";
    device_free: Option<i64>, "B", "Of an oom, what was free on the device.";
    operator: Option<Text>, "", "Innermost operator around it on its thread; NULL for one in none, and in a snapshot.";
    module: Option<Text>, "", "Module that it belongs to, as in python.operators; NULL in a snapshot.";
    stage: Option<Text>, "", "backward, step or forward, as in python.operators; NULL in a snapshot.";
    file: Option<Text>, "", "File of the innermost Python frame around it that is the program's own: neither torch's, nor another package's, nor built in. NULL where stacks were not recorded.";
    line: Option<i32>, "", "Line of that frame.";
    function: Option<Text>, "", "Function of that frame.";
    thread: Option<i64>, "", "Thread, as the capture numbers it; NULL in a snapshot.";
    metadata: Option<Text>, "", "What the program had set for it with torch.cuda.memory._set_memory_metadata.";
}
