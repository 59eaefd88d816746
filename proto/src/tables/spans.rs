//! `python.spans`: ranges that the program names.

use crate::table::{Text, Time};

crate::table! {
    python.spans, Agent, "One row per finished range that the program names: probe_agent.span, torch.profiler.record_function, NVTX.";
    sort: [step, ts];
    examples: [
        "SELECT name, kind, COUNT(*) AS count, SUM(duration) AS seconds, AVG(duration) AS mean FROM python.spans GROUP BY name, kind ORDER BY seconds DESC",
        "SELECT step, depth, parent, name, duration FROM python.spans WHERE step = (SELECT MAX(step) FROM python.spans) ORDER BY ts",
    ];
    step: Option<i64>, "", "Optimizer steps finished when it began; in an imported capture the number of the step that it began in, NULL outside all of them.";
    ts: Time, "", "When it began.";
    duration: f64, "s", "How long it took on the host, ranges within it included.";
    name: Text, "", "Its name; in a live run the first 127 bytes of it.";
    kind: Text, "", "span (probe_agent.span), record_function (ranges of torch's own, such as Optimizer.step, are left out) or nvtx.";
    depth: i32, "", "Ranges of this table that were open around it on its thread.";
    parent: Option<Text>, "", "Name of the innermost of them; NULL at depth 0.";
    thread: i64, "", "Operating-system id of its thread, as the capture has it where that was imported.";
}
