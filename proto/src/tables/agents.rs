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
    state: Text, "", "live; ended (it said goodbye); lost (its stream broke and it has not come back).";
    ended: Option<Time>, "", "When its process had ended, by the collector's clock; NULL while it lives, and where nobody could tell (it ran on another node, or while there was no collector).";
    exit_status: Option<i32>, "", "What its process gave back (a signal handler's own choice included); NULL where a signal ended it, and where it is not known.";
    signal: Option<Text>, "", "What ended its process: SIGKILL, SIGSEGV; NULL where none did, and where it is not known.";
    cause: Option<Text>, "", "What the kernel says about a signal's cause: that it killed for want of memory (by control group or, without one, on the node), and its log's line about the process where the log may be read.";
    step: i64, "", "Optimizer steps finished, by its newest report.";
    steps_per_second: Option<f64>, "1/s", "Over the last ten seconds or so, by its newest report.";
    detail: Option<Text>, "", "Detail in force: every-step or off.";
    layers: Text, "", "Which mechanism runs each layer, forward=tp_call backward=record_function …, and what ends its steps, as in python.steps.kind: steps=optimizer.";
    agent_version: Text, "", "Version of the agent.";
    python_version: Text, "", "Version of the interpreter.";
    torch_version: Text, "", "Version of torch.";
    rows_recorded: i64, "rows", "Rows it says it has recorded so far, those included that it dropped or has not sent yet.";
    rows_stored: i64, "rows", "Rows of it that are stored, in memory or on disk; those that were and had to go are in probe.drops.";
    rows_dropped: i64, "rows", "Rows it dropped before sending, all reasons (probe.drops).";
    first_seen: Time, "", "When it first connected.";
    last_seen: Time, "", "When anything last came from it.";
    clock_offset: Option<f64>, "s", "Its clock minus the collector's at its newest report, transit included. All times of its rows are its own clock's: subtract this to compare them with those of another node.";
    problem: Option<Text>, "", "The newest thing that went wrong in it, in words.";
    command: Text, "", "Its command line.";
}
