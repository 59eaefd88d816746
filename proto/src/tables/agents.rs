//! `probe.agents`: who is or was connected.

use crate::table::{Text, Time};

crate::table! {
    probe.agents, Collector, "One row per agent that is or was connected to this collector.";
    sort: [first_seen];
    examples: [
        "SELECT rank, pid, state, step, layers, rows_stored, rows_dropped FROM probe.agents ORDER BY rank",
    ];
    run: Text, "", "The run.";
    host: Text, "", "Host name.";
    pid: i32, "", "Process id on that host.";
    rank: Option<i32>, "", "Global rank; NULL without a process group.";
    local_rank: Option<i32>, "", "Rank within its host.";
    world_size: Option<i32>, "ranks", "Ranks in the default process group.";
    role: Text, "", "What the process is: trainer.";
    state: Text, "", "live; ended (it disconnected in order); lost (its connection broke and it did not reconnect).";
    ended: Option<Time>, "", "When its process ended, by the collector's clock. NULL while it lives, and when its end was not seen: it ran on another node, or no collector ran.";
    exit_status: Option<i32>, "", "Exit status of its process, also when a signal handler chose it. NULL when a signal ended it, or when it is not known.";
    signal: Option<Text>, "", "Signal that ended its process: SIGKILL, SIGSEGV. NULL when none did, or when it is not known.";
    cause: Option<Text>, "", "What the kernel reports about the cause of the signal: an out-of-memory kill (in the control group or, without one, on the node), and the kernel log's line about the process when the log can be read.";
    step: i64, "", "Optimizer steps finished, by its newest report.";
    steps_per_second: Option<f64>, "1/s", "Steps a second over about the last ten seconds, by its newest report.";
    detail: Option<Text>, "", "Detail in force: every-step or off.";
    layers: Text, "", "Which mechanism runs each layer, forward=tp_call backward=record_function …, and what ends its steps, as in python.steps.kind: steps=optimizer.";
    attached: Option<bool>, "", "Whether probe attach put it into a program that trained already: its steps are counted from the attach, so the same number means another step on other ranks (python.step_offsets). NULL in older recordings.";
    agent_version: Text, "", "Version of the agent.";
    python_version: Text, "", "Version of the interpreter.";
    torch_version: Text, "", "Version of torch.";
    rows_recorded: i64, "rows", "Rows that the agent has recorded so far, including those that it dropped or has not sent yet.";
    rows_stored: i64, "rows", "Its rows that are stored, in memory or on disk. Rows that were evicted later are in probe.drops.";
    rows_dropped: i64, "rows", "Rows that it dropped before sending, for all reasons (probe.drops).";
    first_seen: Time, "", "When it first connected.";
    last_seen: Time, "", "When the collector last received anything from it.";
    clock_offset: Option<f64>, "s", "Its clock minus the collector's clock at its newest report, including transit. The times of its rows are by its own clock: subtract this to compare them with those of another node.";
    problem: Option<Text>, "", "The latest problem in this agent, in words.";
    command: Text, "", "Its command line.";
}
