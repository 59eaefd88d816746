//! `python.steps`: a row a step, whose parts sum to its duration.

use crate::table::{Text, Time};

crate::table! {
    python.steps, Agent, "One row per optimizer step; its parts sum to its duration.";
    sort: [step];
    examples: [
        "SELECT step, rank, duration, data_time, forward_time, backward_time, optimizer_time, comm_time, other_time FROM python.steps ORDER BY step DESC LIMIT 10",
        "SELECT rank, COUNT(*) AS steps, AVG(duration) AS seconds, AVG(samples / duration) AS samples_per_second FROM python.steps WHERE warmup IS NOT TRUE GROUP BY rank ORDER BY rank",
    ];
    step: i64, "", "Number of the step, from 0.";
    ts: Time, "", "When it began: the end of the step before, or the first thing seen of the first one.";
    duration: f64, "s", "From the end of the step before to the end of this one's optimizer, host time, without time spent in snippets of probe eval.";
    data_time: f64, "s", "Waiting for the DataLoader.";
    forward_time: f64, "s", "In outermost module calls.";
    backward_time: f64, "s", "From the first autograd node's start to the last one's end.";
    optimizer_time: f64, "s", "In the step of every optimizer.";
    comm_time: f64, "s", "The training thread waiting for collectives outside the other parts: DDP's last buckets after backward, synchronous collectives in the loop.";
    other_time: f64, "s", "The rest.";
    clock: Text, "", "Clock of the stage times: host, or device where they were timed there.";
    micro_steps: i32, "", "Root forward calls in the step.";
    samples: Option<i64>, "", "Sum over the step's root forwards of the first dimension of their first tensor; where they were given none, of the batches handed to the loop (python.data_trace); NULL where neither says.";
    max_allocated: Option<f64>, "MB", "Peak device memory allocated (10^6 bytes) by the end of the step, since the process began or the program last reset it; of the device where it is largest. NULL without a device allocator.";
    detail: bool, "", "Whether the step's modules were recorded.";
    warmup: Option<bool>, "", "Whether the process had not settled yet: steps are warm-up until two windows of 8 that follow each other have medians within 10 % of each other, and at most 128 are. NULL from agents that did not say it.";
}
