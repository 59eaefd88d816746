//! `python.steps`: a row a step, whose parts sum to its duration.

use crate::table::{Text, Time};

crate::table! {
    python.steps, Agent, "One row per optimizer step (or what counts as one, see kind). The parts of a step sum to its duration.";
    sort: [step];
    examples: [
        "SELECT step, rank, duration, data_time, forward_time, backward_time, optimizer_time, comm_time, validation_time, checkpoint_time, other_time FROM python.steps ORDER BY step DESC LIMIT 10",
        "SELECT rank, COUNT(*) AS steps, AVG(duration) AS seconds, AVG(samples / (duration - COALESCE(validation_time, 0) - COALESCE(checkpoint_time, 0))) AS samples_per_second FROM python.steps WHERE warmup IS NOT TRUE GROUP BY rank ORDER BY rank",
    ];
    step: i64, "", "Number of the step, from 0, or from the attach on. python.step_offsets says which steps of other ranks are the same.";
    ts: Time, "", "When it began: the end of the step before. For the first step, its first recorded event.";
    duration: f64, "s", "From the end of the step before to the end of this one's optimizer, host time, without time spent in snippets of probe eval.";
    data_time: f64, "s", "Waiting for the DataLoader. Modules that its Dataset calls in this process (transforms) are in it, and have no rows in python.torch_trace.";
    forward_time: f64, "s", "Time in outermost module calls. What calls no module (a function that torch.compile compiles whole) is in other_time.";
    backward_time: f64, "s", "From the first autograd node's start to the last one's end.";
    optimizer_time: f64, "s", "Time in the steps of optimizers. Where several step in turn, that of the first one ends the step, and those of the others are in the next step.";
    comm_time: f64, "s", "Waiting of the training thread for collectives outside the other parts: DDP's last buckets after backward, and synchronous collectives in the loop.";
    validation_time: Option<f64>, "s", "In validation on the thread that trains: outermost calls in eval mode or without gradients (stage validation of python.torch_trace), gradients of inputs that these ask for, the batches waited for in between, and the rest of that loop. It is not in the other parts, micro_steps or samples. NULL from older agents, which counted it in them.";
    checkpoint_time: Option<f64>, "s", "In what saves: torch.save, torch.distributed.checkpoint.save and safetensors.torch.save_file (python.checkpoints). NULL from older agents, which counted it as other_time.";
    other_time: f64, "s", "The rest.";
    cpu_time: Option<f64>, "s", "What the thread that ended the step spent on a processor. Work of other threads (operators on several cores, a device's backward pass) is not in it. NULL for the first step, when another thread ended the step before, with a snippet of probe eval in the step, and from older agents.";
    run_delay: Option<f64>, "s", "How long that thread was ready and had no processor, because others had it or the limit of its cgroup was reached. NULL as cpu_time, and where the kernel does not count it (/proc/PID/schedstat).";
    gc_time: Option<f64>, "s", "Garbage collections on any thread (python.pauses has the longer ones). It is in the other parts too. NULL when the layer pauses is off, and from older agents.";
    kind: Option<Text>, "", "What ended it: optimizer (the step of a torch optimizer), marked (probe_agent.step()), backward (a backward pass of a module, where no torch optimizer steps), or call (an outermost call, in a program that only infers). In the last two cases the first eight passes, or twelve calls, are step 0 together, which has no row. NULL from older agents.";
    clock: Text, "", "Clock of the stage times: host, or device when they were timed there.";
    micro_steps: i32, "", "Root forward calls in the step, without validation.";
    samples: Option<i64>, "", "Sum over the root forwards of the step's model, without validation, of the first dimension of their first tensor. If they got no tensor, or several models were called (a GAN, an actor and its critic), the samples of the batches that the loop got (python.data_trace), or of the model that got most. NULL when none of this is known.";
    max_allocated: Option<f64>, "MB", "Peak device memory allocated (10^6 bytes) by the end of the step, since the process began or the program last reset it, on the device where it is largest. NULL without a device allocator.";
    detail: bool, "", "Whether the step's modules were recorded.";
    warmup: Option<bool>, "", "Whether the step is warm-up: steps are, until a window of 8 has a median at most 10 % below that of the window before, and for at most 128 steps. NULL from older agents.";
    device_duration: Option<f64>, "s", "On the device's clock, from the end of the step before to the end of this step. This column and those below are NULL when they were not timed: modules on the host, several devices, no CUDA events.";
    device_forward_time: Option<f64>, "s", "On the device's clock, between the beginnings and ends of outermost module calls, gaps included; NULL without detail.";
    device_backward_time: Option<f64>, "s", "On the device's clock, from the first autograd node of each backward pass to its last one.";
    device_optimizer_time: Option<f64>, "s", "On the device's clock, in the steps of optimizers.";
    gpu_idle_max: Option<f64>, "s", "Upper bound of the time in which the computing stream had nothing queued: duration without the time in which an event recorded with a module, autograd node or optimizer waited for earlier work. Work that is launched and done between two events is not seen: many short kernels behind a slow host count as idle, and a stream that waits for another one (a collective) counts as busy. NULL without detail, or with a snippet of probe eval in the step.";
    captured: Option<bool>, "", "Whether torch.profiler was on for probe capture, which makes a step slower. Such steps are in no warm-up and no baseline, and the governor leaves them out. NULL from older agents.";
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
            cpu_time: None,
            run_delay: None,
            gc_time: None,
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
            captured: Some(false),
        }
    }
}
