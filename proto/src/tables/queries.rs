//! `probe.queries`: every query that was asked of the collector.

use crate::table::{Text, Time};

crate::table! {
    probe.queries, Collector, "One row per query asked of the collector, also for refused and failed ones.";
    sort: [ts];
    examples: [
        "SELECT ts, asked_by, peer, status, duration, rows, sql FROM probe.queries ORDER BY ts DESC LIMIT 10",
    ];
    id: i64, "", "Number of the query within the run, from 1. The 10000 newest are kept: the smallest number minus one is how many have gone.";
    ts: Time, "", "When it was asked.";
    asked_by: Text, "", "Who asked: uid:1000 on the unix socket, token:NAME over TCP; 'no token' and 'unknown token' were refused.";
    peer: Option<Text>, "", "Where the call came from: pid:4242, tcp:10.0.0.7:51234; NULL where nothing says it.";
    sql: Text, "", "The query; of one longer than 64 KiB the beginning. Empty where a caller without a valid token was refused: nothing of it is read.";
    hash: Text, "", "SHA-256 of all of its text, hexadecimal.";
    only_pid: Option<i32>, "", "Process that it was limited to; NULL for all.";
    status: Text, "", "running, ok, error, denied (it would not only have read), refused (whoever asked may not), limit or cancelled.";
    duration: Option<f64>, "s", "From the asking until the last row was taken; NULL while it runs, and where the collector died.";
    rows: i64, "rows", "Rows of the answer that were sent.";
    bytes: i64, "B", "Bytes of the answer that were sent, as Arrow IPC.";
    error: Option<Text>, "", "Why it failed or was refused.";
}
