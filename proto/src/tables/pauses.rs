//! `python.pauses`: when Python or torch.compile made the program stand still.

use crate::table::{Text, Time};

crate::table! {
    python.pauses, Agent, "One row per garbage collection of 0.1 ms or more, per full garbage collection, and per compilation of torch.compile. While one runs, no other thread runs Python. python.steps.gc_time has the shorter collections too.";
    sort: [step, ts];
    examples: [
        "SELECT kind, generation, COUNT(*) AS times, SUM(duration) AS seconds, MAX(duration) AS longest FROM python.pauses GROUP BY kind, generation ORDER BY seconds DESC",
        "SELECT p.step, p.rank, p.kind, p.part, p.duration, s.duration AS step_duration FROM python.pauses p JOIN python.steps s ON p.run = s.run AND p.host = s.host AND p.pid = s.pid AND p.step = s.step ORDER BY p.duration DESC LIMIT 10",
    ];
    step: i64, "", "The step that it was part of, as in python.steps.";
    ts: Time, "", "When it began.";
    kind: Text, "", "garbage collection, or compilation (by TorchDynamo, or of a backward pass at its first use).";
    part: Text, "", "What its thread was doing, as the parts of python.steps: data, forward, backward, optimizer, checkpoint or other.";
    duration: f64, "s", "How long it took. It is in the times of modules and parts that it interrupted.";
    generation: Option<i32>, "", "Oldest generation of objects that was searched; 2 is a full collection. NULL for a compilation.";
    collected: Option<i64>, "objects", "Objects that were freed. NULL for a compilation.";
    uncollectable: Option<i64>, "objects", "Objects that could not be freed. NULL for a compilation.";
    compile_id: Option<Text>, "", "FRAME/COMPILATION, as torch counts them: 3/1 is the first recompilation of frame 3. NULL for a garbage collection, and where torch does not say it (before 2.7).";
    thread: i64, "", "Operating-system id of the thread that it ran on.";
}
