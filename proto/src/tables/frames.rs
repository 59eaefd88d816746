//! `python.frames`: calls of Python functions in captures.

use crate::table::{Text, Time};

crate::table! {
    python.frames, Agent, "One row per call of a Python function or module in a capture that was made with stacks.";
    sort: [ts];
    examples: [
        "SELECT file, line, function, COUNT(*) AS calls, SUM(self_duration) AS own FROM python.frames GROUP BY file, line, function ORDER BY own DESC LIMIT 10",
        "SELECT module, COUNT(*) AS calls, SUM(duration) AS seconds FROM python.frames WHERE module IS NOT NULL GROUP BY module ORDER BY seconds DESC",
    ];
    capture: Text, "", "Name of the capture, as in python.captures.";
    step: Option<i64>, "", "Number of the ProfilerStep that it began in; NULL outside all of them.";
    id: Option<i64>, "", "Number of the call in the capture, which python.operators.stack points to.";
    parent: Option<i64>, "", "id of the call around it; NULL for an outermost one.";
    ts: Time, "", "When it began.";
    duration: f64, "s", "How long it took.";
    self_duration: f64, "s", "duration without the Python calls directly within it.";
    function: Text, "", "Name of the function; for a module its class and the number of the instance.";
    file: Option<Text>, "", "File as the capture says it; NULL for built-in functions and modules.";
    line: Option<i32>, "", "First line of the function.";
    module: Option<Text>, "", "For the call of an nn.Module, the classes and numbers of the modules around it and its own; else NULL.";
    depth: i32, "", "Calls that were open around it on its thread.";
    thread: i64, "", "Thread, as the capture numbers it.";
}
