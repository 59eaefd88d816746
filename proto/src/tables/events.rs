//! `probe.events`: what happened to a run that somebody should know.

use crate::table::{Text, Time};

crate::table! {
    probe.events, Collector, "One row per thing that happened to the run or to one of its processes: it slowed down, detail changed, a rank hangs, ….";
    sort: [ts];
    examples: [
        "SELECT ts, severity, kind, rank, step, message FROM probe.events ORDER BY ts DESC LIMIT 20",
    ];
    id: i64, "", "Number of the event within the run, from 1. The 10000 newest are kept: the smallest number minus one is how many have gone.";
    ts: Time, "", "When it was noticed.";
    kind: Text, "", "slow (steps take longer than the run's own baseline), capture (detail for a while because of that), detail (which steps are recorded in detail has changed), detail late (ranks may differ in that), config (a setting was asked for), refused (somebody may not do what was asked), hang, crash, out_of_memory, ….";
    severity: Text, "", "info, warning or error.";
    run: Text, "", "The run.";
    host: Option<Text>, "", "Host name of the process; NULL where it is about the whole run.";
    pid: Option<i32>, "", "Process id on that host; NULL where it is about the whole run.";
    rank: Option<i32>, "", "Global rank of the process; NULL without a process group, and where it is about the whole run.";
    step: Option<i64>, "", "Step it is about, or at which it was noticed; NULL where it has none.";
    message: Text, "", "What happened, one sentence.";
    details: Option<Text>, "", "More about it, as a JSON object whose keys depend on kind.";
}
