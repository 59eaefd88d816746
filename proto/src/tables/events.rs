//! `probe.events`: notable events of a run.

use crate::table::{Text, Time};

crate::table! {
    probe.events, Collector, "One row per event of the run or of one of its processes: it slowed down, detail changed, a rank hangs, and others.";
    sort: [ts];
    examples: [
        "SELECT ts, severity, kind, rank, step, message FROM probe.events ORDER BY ts DESC LIMIT 20",
    ];
    id: i64, "", "Number of the event within the run, from 1. The newest 10000 are kept: the smallest number minus one is how many were removed.";
    ts: Time, "", "When the collector noticed it.";
    kind: Text, "", "slow (steps take longer than the run's own baseline), capture (detail for a while because of that), detail (the choice of steps recorded in detail changed), detail late (ranks may differ in that choice), config (a setting was requested), refused (a caller had no permission), finding (probe diagnose has a new warning, or one is gone), diagnosis (it failed, so findings may be missing), panic (a part of the collector failed and starts again), collector (it ended before the run did, and another one goes on), hang, gpu (an error that its driver reported), process end (an agent's process ended in another way than with status 0), command end (the command of probe run ended; details has its exit_status, and how many of its processes go on unrecorded).";
    severity: Text, "", "info, warning or error.";
    run: Text, "", "The run.";
    host: Option<Text>, "", "Host name of the process; NULL for an event of the whole run.";
    pid: Option<i32>, "", "Process id on that host; NULL for an event of the whole run.";
    rank: Option<i32>, "", "Global rank of the process; NULL without a process group, and for an event of the whole run.";
    step: Option<i64>, "", "Step that the event is about, or at which it was noticed. NULL when there is none.";
    message: Text, "", "What happened, one sentence.";
    details: Option<Text>, "", "Details of the event, as a JSON object whose keys depend on kind.";
}
