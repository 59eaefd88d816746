//! `python.stack_samples`: where the main threads of processes were, sampled by the collector itself.

use crate::table::{Text, Time};

crate::table! {
    python.stack_samples, Agent, "One row per sample of a process's main thread, which the collector takes by itself: 10 a second in the first minute of steps, then 1 a second, and 20 a second for 2 s when steps get slower. It reads the memory of processes on its node, which do not stop, and takes fewer samples where these cost more than half a percent of one processor. PROBE_STACK_SAMPLING=off ends it. Captures that people ask for are in python.stacks.";
    sort: [ts];
    examples: [
        "SELECT rank, part, function, file, line, COUNT(*) AS samples, SUM(elapsed) AS seconds FROM python.stack_samples GROUP BY rank, part, function, file, line ORDER BY seconds DESC LIMIT 20",
        "SELECT s.step, s.duration, t.part, t.function, t.line FROM python.steps s JOIN python.stack_samples t ON s.run = t.run AND s.pid = t.pid AND t.ts >= s.ts AND CAST(t.ts AS BIGINT) - CAST(s.ts AS BIGINT) < s.duration * 1e9 ORDER BY s.duration DESC LIMIT 20",
        "SELECT gil_thread, gil_function, COUNT(*) AS samples FROM python.stack_samples WHERE gil_elsewhere GROUP BY gil_thread, gil_function ORDER BY samples DESC",
    ];
    ts: Time, "", "When the process was read.";
    step: i64, "", "Steps that the process had finished, as it last reported, which it does every half second.";
    kind: Text, "", "Why it was read: always; slow, when steps got slower; or asked, by probe diagnose --ask.";
    elapsed: Option<f64>, "s", "Since the last sample of this process, which tells how often it was really read. NULL for the first one, and after an interruption.";
    part: Text, "", "What the stack shows, as the parts of python.steps: data, forward, backward, optimizer, comm, checkpoint or other. Validation counts as forward.";
    function: Option<Text>, "", "Innermost function of the user's code. NULL where there is none.";
    file: Option<Text>, "", "Its file.";
    line: Option<i32>, "", "The line that runs.";
    library_function: Option<Text>, "", "Innermost function, when that is in a library or in the standard library. NULL when the user's code itself runs.";
    library_file: Option<Text>, "", "Its file.";
    library_line: Option<i32>, "", "The line that runs there.";
    running: bool, "", "Whether the thread runs on a core or is ready to, according to the kernel.";
    gil: bool, "", "Whether it holds the global interpreter lock.";
    gil_elsewhere: bool, "", "Whether another thread holds it.";
    gil_thread: Option<Text>, "", "Name of that thread in Python's threading.";
    gil_function: Option<Text>, "", "Innermost function of that thread: of the user's code, if it has any.";
    gil_file: Option<Text>, "", "Its file.";
    gil_line: Option<i32>, "", "The line that runs there.";
}
