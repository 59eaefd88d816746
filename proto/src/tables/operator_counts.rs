//! `python.operator_counts`: torch's operators that a step calls, in a few steps of many.

use crate::table::{Text, Time};

crate::table! {
    python.operator_counts, Agent, "One row per operator and part of a step, in steps whose operators are watched: how often it ran, and the host's time in it.";
    sort: [step, ts];
    examples: [
        "SELECT operator, part, SUM(count) / COUNT(DISTINCT step) AS times_a_step, SUM(duration) / SUM(count) AS seconds_each, SUM(duration * stride) AS seconds_in_run FROM python.operator_counts GROUP BY operator, part ORDER BY seconds_in_run DESC LIMIT 10",
        "SELECT step, part, SUM(outermost) AS called, SUM(duration) AS seconds FROM python.operator_counts GROUP BY step, part ORDER BY step, part",
    ];
    step: i64, "", "The step that it was part of, as in python.steps.";
    stride: i32, "steps", "Operators are watched in one of this many steps: multiply by it for sums over a run.";
    ts: Time, "", "When the step ended.";
    operator: Option<Text>, "", "The operator, as torch.profiler names it: aten::addmm. NULL for all that came after the first 1024 names of the process together.";
    part: Text, "", "What its thread was doing, as the parts of python.steps: data, forward, backward, optimizer, checkpoint or other.";
    count: i64, "", "How often it ran; once where it calls another overload of itself.";
    outermost: i64, "", "How often the program or torch's Python called it, and not another operator.";
    duration: f64, "s", "The host's time in it, without the operators that it called. Work that a device does later is not included.";
}
