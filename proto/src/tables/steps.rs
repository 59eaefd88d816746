//! `python.steps`: a row a step, whose parts sum to its duration.

use crate::table::{Text, Time};

crate::table! {
    python.steps, Agent, "One row per optimizer step (or what stands for it, see kind); its parts sum to its duration.";
    sort: [step];
    examples: [
        "SELECT step, rank, duration, data_time, forward_time, backward_time, optimizer_time, comm_time, validation_time, checkpoint_time, other_time FROM python.steps ORDER BY step DESC LIMIT 10",
        "SELECT rank, COUNT(*) AS steps, AVG(duration) AS seconds, AVG(samples / (duration - COALESCE(validation_time, 0) - COALESCE(checkpoint_time, 0))) AS samples_per_second FROM python.steps WHERE warmup IS NOT TRUE GROUP BY rank ORDER BY rank",
    ];
    step: i64, "", "Number of the step, from 0.";
    ts: Time, "", "When it began: the end of the step before, or the first thing seen of the first one.";
    duration: f64, "s", "From the end of the step before to the end of this one's optimizer, host time, without time spent in snippets of probe eval.";
    data_time: f64, "s", "Waiting for the DataLoader.";
    forward_time: f64, "s", "In outermost module calls.";
    backward_time: f64, "s", "From the first autograd node's start to the last one's end.";
    optimizer_time: f64, "s", "In the step of every optimizer.";
    comm_time: f64, "s", "The training thread waiting for collectives outside the other parts: DDP's last buckets after backward, synchronous collectives in the loop.";
    validation_time: Option<f64>, "s", "In validation: outermost calls in eval mode or without gradients (stage validation of python.torch_trace), the batches waited for in between, and the rest of that loop. The other parts, micro_steps and samples are without it. NULL from agents that counted it into them.";
    checkpoint_time: Option<f64>, "s", "In torch.save and torch.distributed.checkpoint.save (python.checkpoints). NULL from agents that counted it as other_time.";
    other_time: f64, "s", "The rest.";
    kind: Option<Text>, "", "What ended it: optimizer (the step of a torch optimizer), marked (probe_agent.step()), backward (in a program in which no torch optimizer steps, a backward pass of a module), or call (in one that only infers, an outermost call). NULL from agents that did not say it.";
    clock: Text, "", "Clock of the stage times: host, or device where they were timed there.";
    micro_steps: i32, "", "Root forward calls in the step, without validation.";
    samples: Option<i64>, "", "Sum over the step's root forwards, without validation, of the first dimension of their first tensor; where they were given none, of the batches handed to the loop (python.data_trace); NULL where neither says.";
    max_allocated: Option<f64>, "MB", "Peak device memory allocated (10^6 bytes) by the end of the step, since the process began or the program last reset it; of the device where it is largest. NULL without a device allocator.";
    detail: bool, "", "Whether the step's modules were recorded.";
    warmup: Option<bool>, "", "Whether the process had not settled yet: steps are warm-up until two windows of 8 that follow each other have medians within 10 % of each other, and at most 128 are. NULL from agents that did not say it.";
    device_duration: Option<f64>, "s", "On the device's clock, from when it came to the end of the step before until it came to this one's. This and the columns below are NULL where they were not timed: modules on the host, several devices, no CUDA events.";
    device_forward_time: Option<f64>, "s", "On the device's clock, between the beginnings and ends of outermost module calls, gaps included; NULL without detail.";
    device_backward_time: Option<f64>, "s", "The same from each backward pass's first autograd node to its last.";
    device_optimizer_time: Option<f64>, "s", "The same of the steps of optimizers.";
    gpu_idle_max: Option<f64>, "s", "At most so long of duration the stream that is computed on had nothing queued: all but the time in which an event recorded with a module, autograd node or optimizer waited for the work before it. What is launched and done between two events is not seen, so many short kernels behind a slow host count as idle, and a stream that waits for another (a collective) as busy. NULL without detail, or with a snippet of probe eval in the step.";
}

impl Row {
    /// For tests: a step of one second of which nothing is known but that, `step` nanoseconds after 1970.
    #[doc(hidden)]
    pub fn of_a_second(step: i64) -> Self {
        Self {
            step,
            ts: crate::table::Time(step),
            duration: 1.0,
            data_time: 0.0,
            forward_time: 0.0,
            backward_time: 0.0,
            optimizer_time: 0.0,
            comm_time: 0.0,
            validation_time: Some(0.0),
            checkpoint_time: Some(0.0),
            other_time: 1.0,
            kind: None,
            clock: crate::table::Text(0),
            micro_steps: 1,
            samples: None,
            max_allocated: None,
            detail: true,
            warmup: Some(false),
            device_duration: None,
            device_forward_time: None,
            device_backward_time: None,
            device_optimizer_time: None,
            gpu_idle_max: None,
        }
    }
}
