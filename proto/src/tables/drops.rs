//! `probe.drops`: every row that was recorded and is not there, counted.

use crate::table::{Text, Time};

crate::table! {
    probe.drops, Collector, "Rows that were lost, by agent, table and reason. recorded = stored + dropped + evicted + in flight.";
    sort: [run, rank];
    examples: [
        "SELECT table_name, reason, SUM(rows) AS rows FROM probe.drops GROUP BY table_name, reason ORDER BY rows DESC",
    ];
    run: Text, "", "The run.";
    host: Text, "", "Host name.";
    pid: i32, "", "Process id on that host.";
    rank: Option<i32>, "", "Global rank; NULL without a process group.";
    table_name: Text, "", "The table the rows were meant for: python.torch_trace.";
    reason: Text, "", "ring full, send buffer full, not sent in time (when its process ended), … in the agent; malformed, evicted (past the memory or disk budget) in the collector.";
    at: Text, "", "Where they were lost: agent or collector.";
    rows: i64, "rows", "How many, since the agent began.";
    last_seen: Time, "", "When the count last grew.";
}
