//! `probe.evals`: every snippet that was asked for.

use crate::table::{Text, Time};

crate::table! {
    probe.evals, Collector, "One row per snippet given to probe eval, including refused and failed ones.";
    sort: [ts];
    examples: [
        "SELECT ts, placed, status, duration, training_waited, code FROM probe.evals ORDER BY ts DESC LIMIT 10",
    ];
    id: i64, "", "Number of the snippet within the run, from 1.";
    ts: Time, "", "When it was requested.";
    asked_by: Text, "", "Who asked: uid:1000 on the unix socket, token:NAME over TCP; 'no token' and 'unknown token' were refused.";
    peer: Option<Text>, "", "Where the call came from: pid:4242, tcp:10.0.0.7:51234. NULL when that is not known.";
    code: Text, "", "The snippet. Empty when a caller without a valid token was refused, because its text is not read.";
    hash: Text, "", "SHA-256 of its text, hexadecimal.";
    session: Option<Text>, "", "Session whose variables it used. NULL without a session.";
    at: Text, "", "What was asked for: auto, now or step.";
    placed: Option<Text>, "", "Where it ran: now (beside training) or step (between two steps); NULL when it did not run.";
    step: Option<i64>, "", "Steps finished when it ran.";
    ranks: Option<Text>, "", "Ranks that it ran on: 0,1. NULL in a process without a process group.";
    status: Text, "", "running (also after its deadline, in a call that cannot be interrupted), ok, error, timeout, output limit, no boundary, refused or cancelled.";
    duration: Option<f64>, "s", "How long it ran, the longest of its ranks.";
    training_waited: Option<f64>, "s", "How long training waited for it.";
    output_bytes: i64, "B", "Output it made, all ranks.";
    error: Option<Text>, "", "Last line of the traceback, or why it was refused.";
}
