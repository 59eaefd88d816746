//! `gpu.memory_blocks`: the blocks that CUDA's caching allocator had when a memory snapshot was taken.

use crate::table::{Text, Time};

crate::table! {
    gpu.memory_blocks, Agent, "One row per block of each segment that CUDA's caching allocator held when a memory snapshot was taken: what is allocated, and what lies free between.";
    sort: [segment_address, address];
    examples: [
        "SELECT file, line, SUM(size) AS bytes, COUNT(*) AS blocks FROM gpu.memory_blocks WHERE state = 'active_allocated' GROUP BY file, line ORDER BY bytes DESC LIMIT 10",
        "SELECT device, state, SUM(size) AS bytes, MAX(size) AS largest FROM gpu.memory_blocks GROUP BY device, state ORDER BY device, state",
    ];
    capture: Text, "", "Name of the capture, as in python.captures.";
    ts: Option<Time>, "", "When the snapshot was taken: its newest event; NULL where it has no history.";
    device: Text, "", "cuda:0, …; cpu for pinned memory of the host.";
    stream: Option<i64>, "", "Stream of the segment, as the snapshot numbers it.";
    segment_address: i64, "", "Address of the segment.";
    segment_size: i64, "B", "Size of the segment.";
    segment_type: Option<Text>, "", "large (for blocks above 1 MB), small, or what else the snapshot says; NULL for the host.";
    expandable: Option<bool>, "", "Whether the segment grows with its blocks (expandable_segments); NULL where the snapshot does not say.";
    pool: Option<Text>, "", "Memory pool of the segment: [0,0] for the one of all, others for CUDA graphs and torch.cuda.MemPool. NULL where the snapshot does not say.";
    address: i64, "", "Address of the block; reckoned from the sizes before it in snapshots that are too old to say it.";
    size: i64, "B", "Size of the block, as the allocator rounded it. Those of a segment add up to segment_size.";
    requested_size: Option<i64>, "B", "What the program asked for; NULL for an inactive block of which the snapshot does not say it.";
    state: Text, "", "active_allocated (in use), active_pending_free (freed by the program, and another stream still uses it) or inactive.";
    file: Option<Text>, "", "File of the innermost Python frame of its allocation that is the program's own. NULL where the allocator recorded no stacks.";
    line: Option<i32>, "", "Line of that frame.";
    function: Option<Text>, "", "Function of that frame.";
}
