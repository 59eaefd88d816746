//! `python.captures`: what captures there are, and what was left out of each.

use crate::table::{Text, Time};

crate::table! {
    python.captures, Agent, "One row per capture and process: steps or a memory snapshot that probe capture recorded, or a file that was imported.";
    sort: [ts];
    examples: [
        "SELECT capture, rank, tool, steps, events, left_out, reasons, problem FROM python.captures",
        "SELECT capture, operators, kernels, launches, devices, versions FROM python.captures",
    ];
    capture: Text, "", "Its name in the run: capture-1/rank0 for rank 0 of the first probe capture (pid and a number without a rank); the name of the imported file.";
    ts: Option<Time>, "", "When its first event began; NULL without events.";
    duration: Option<f64>, "s", "From there to the end of the last event.";
    tool: Text, "", "What made it, as --format of probe import calls it: kineto, xplane, nsight-systems, nsight-compute, flight-recorder, memory-snapshot, execution-trace, nccl-inspector.";
    file: Option<Text>, "", "File that was imported; NULL for probe capture.";
    file_bytes: i64, "B", "Size of the file that was read.";
    text_bytes: i64, "B", "Size of the text in it, unpacked.";
    versions: Option<Text>, "", "Versions that it names, in JSON: of CUDA, CUPTI, HIP, NCCL, its schema.";
    devices: Option<Text>, "", "Names of the machine's devices, each once.";
    clock: Text, "", "unix where times are from 1970 on, relative where the instant that they are from is not known, none where there are no times.";
    rank_source: Text, "", "Where the rank was found: run (it is the process's own), file (distributedInfo), name (of the file), device (each of several processes used one device alone: the number of that, which is a guess) or none.";
    steps: i64, "", "Steps in it: ProfilerSteps, the ranges that probe import --step-range matched, or those of a memory history that probe capture recorded.";
    first_step: Option<i64>, "", "Number of the first of them; of probe capture by the process's own count (python.step_offsets says which steps of other ranks are the same).";
    last_step: Option<i64>, "", "Number of the last of them, by the same.";
    events: i64, "", "Events read; of a dump of the Flight Recorder its operations, which are rows of python.flight_recorder; of a memory snapshot those of its history.";
    operators: i64, "", "Rows of python.operators.";
    kernels: i64, "", "Rows of gpu.kernels.";
    launches: i64, "", "Rows of gpu.launches.";
    frames: i64, "", "Rows of python.frames.";
    metrics: i64, "", "Rows of gpu.kernel_metrics.";
    spans: i64, "", "Rows of python.spans.";
    memory_events: i64, "", "Rows of python.memory_events.";
    memory_blocks: i64, "", "Rows of gpu.memory_blocks.";
    nodes: i64, "", "Rows of python.execution_trace.";
    without_launch: i64, "", "Rows of gpu.kernels whose launch is not in the capture.";
    left_out: i64, "", "Events that became no row.";
    reasons: Option<Text>, "", "Their number by reason, in JSON.";
    mended: i64, "", "Events whose text was no valid JSON and could be read after all, such as those with bare quotes in a name.";
    complete: bool, "", "Whether the file was read to its end.";
    problem: Option<Text>, "", "Why it was not, with the byte and the event.";
    cost: Option<f64>, "s", "Time of the profiler's own work, as it reports it (events of category overhead); NULL where it does not.";
    waited: Option<f64>, "s", "How long training stood still between two steps, to start and stop the profiler and to write its trace. NULL for a file that was imported.";
}
