//! `python.torch_trace`: where the time of a step went, by module and stage.

use crate::table::{Text, Time};

crate::table! {
    python.torch_trace, Agent, "One row per finished interval of a module (forward, recompute, backward, validation) or of an optimizer (step), in steps recorded in detail.";
    sort: [step, ts];
    examples: [
        "SELECT module, stage, COUNT(*) AS calls, SUM(duration) AS seconds FROM python.torch_trace GROUP BY module, stage ORDER BY seconds DESC LIMIT 10",
        "SELECT step, stage, SUM(duration) AS seconds FROM python.torch_trace WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) GROUP BY step, stage ORDER BY step, stage",
    ];
    step: i64, "", "Optimizer steps finished when the interval began: the first step is 0.";
    micro_step: i32, "", "Root forward calls since the last optimizer step, from 0: above 0 with gradient accumulation. In stage validation, validation's root calls since then.";
    call_index: i32, "", "Calls of this module before this one in the same forward pass, from 0.";
    module: Option<Text>, "", "Qualified name below the root (layers.0.attn.qkv), wrappers' prefixes stripped; a root's or wrapper's own row has its class name; in stage step the optimizer's class; NULL for backward work of operations outside every module.";
    module_type: Option<Text>, "", "Class name of the module or optimizer.";
    depth: i32, "", "Modules this one was called within; 0 is the outermost.";
    stage: Text, "", "forward, backward (also of gradients that validation asks for, whose time is in validation_time of python.steps), step (optimizer), recompute (activation checkpointing: forward work inside backward) or validation: forward passes in eval mode or without gradients of a process that trains, where nothing between the batch before and the next one trains (a GAN's generator and a teacher are part of forward). A process that only infers has forward.";
    ts: Time, "", "When the interval began.";
    duration: Option<f64>, "s", "The interval's own time, without the modules called within it, so that it adds up: SUM(duration) over a step and stage is that stage's time. On a GPU it is device time, and NULL when it was not timed there.";
    total_duration: Option<f64>, "s", "Time of the interval, including the modules called within it.";
    host_duration: f64, "s", "Own time on the host's clock; never NULL.";
    allocated: Option<f64>, "MB", "Device memory allocated when the interval ended, by the caching allocator of the calling thread's device. It is read in the first of each 64 steps that have detail, for forward, recompute and step. NULL elsewhere, for modules on another device, and without such an allocator.";
    allocated_delta: Option<f64>, "MB", "Change of allocated over the interval, without the modules called within it, so that it adds up: what a forward keeps for backward, or what an optimizer keeps. It includes allocations of other threads in that time.";
    max_allocated: Option<f64>, "MB", "Peak of allocated when the interval ended, since the process began or the program reset it. The agent never resets it.";
    reserved: Option<f64>, "MB", "Device memory that the caching allocator held then.";
    input_shape: Option<Text>, "", "Shape of the first tensor given to the outermost module of a call: [32, 128]; NULL for a new one after 65,536 different ones.";
    device: Option<Text>, "", "Device of the module's parameters: cpu, cuda:0.";
    compiled: bool, "", "Whether the module runs as a compiled region (torch.compile), whose inner modules have no rows.";
    captured: Option<bool>, "", "Whether torch.profiler was on for probe capture, which makes the interval longer. NULL from older agents and in imported traces.";
    thread: i64, "", "Operating-system thread id.";
}
