//! `probe.evals`: every snippet that was asked for.

use crate::table::{Text, Time};

crate::table! {
    probe.evals, Collector, "One row per snippet given to probe eval, also for refused and failed ones.";
    sort: [ts];
    examples: [
        "SELECT ts, placed, status, duration, training_waited, code FROM probe.evals ORDER BY ts DESC LIMIT 10",
    ];
    id: i64, "", "Number of the snippet within the run, from 1.";
    ts: Time, "", "When it was asked for.";
    asked_by: Text, "", "Who asked: uid:1000 on the unix socket, token over TCP.";
    peer: Option<Text>, "", "Where the call came from: pid:4242, tcp:10.0.0.7:51234; NULL where nothing says it.";
    code: Text, "", "The snippet.";
    hash: Text, "", "SHA-256 of its text, hexadecimal.";
    session: Option<Text>, "", "Session whose variables it saw; NULL where it had none.";
    at: Text, "", "What was asked for: auto, now or step.";
    placed: Option<Text>, "", "Where it ran: now (beside training) or step (between two steps); NULL when it ran nowhere.";
    step: Option<i64>, "", "Steps finished when it ran.";
    ranks: Option<Text>, "", "Ranks it ran on: 0,1; NULL in a process that is in no process group.";
    status: Text, "", "running (also past its deadline, in a call that cannot be interrupted), ok, error, timeout, output limit, no boundary, refused or cancelled.";
    duration: Option<f64>, "s", "How long it ran, the longest of its ranks.";
    training_waited: Option<f64>, "s", "How long training waited for it.";
    output_bytes: i64, "B", "Output it made, all ranks.";
    error: Option<Text>, "", "Last line of the traceback, or why it was refused.";
}
