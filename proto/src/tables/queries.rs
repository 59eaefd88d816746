//! `probe.queries`: every query that was asked of the collector.

use crate::table::{Text, Time};

crate::table! {
    probe.queries, Collector, "One row per query that the collector received, including refused and failed ones.";
    sort: [ts];
    examples: [
        "SELECT ts, asked_by, peer, status, duration, rows, sql FROM probe.queries ORDER BY ts DESC LIMIT 10",
    ];
    id: i64, "", "Number of the query within the run, from 1. The newest 10000 are kept: the smallest number minus one is how many were removed.";
    ts: Time, "", "When it was asked.";
    asked_by: Text, "", "Who asked: uid:1000 on the unix socket, token:NAME over TCP; 'no token' and 'unknown token' were refused.";
    peer: Option<Text>, "", "Where the call came from: pid:4242, tcp:10.0.0.7:51234. NULL when that is not known.";
    sql: Text, "", "The query; only the beginning when it is longer than 64 KiB. Empty when a caller without a valid token was refused, because its text is not read.";
    hash: Text, "", "SHA-256 of the whole text, hexadecimal.";
    only_pid: Option<i32>, "", "Process that it was limited to; NULL for all.";
    status: Text, "", "running, ok, error, denied (it would have done more than read), refused (the caller has no permission), limit or cancelled.";
    duration: Option<f64>, "s", "From the request until the last row was sent. NULL while it runs, or when the collector died.";
    rows: i64, "rows", "Rows of the answer that were sent.";
    bytes: i64, "B", "Bytes of the answer that were sent, as Arrow IPC.";
    error: Option<Text>, "", "Why it failed or was refused.";
}
