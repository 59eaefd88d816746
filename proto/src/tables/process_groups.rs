//! `python.process_groups`: the process groups that a dump of the Flight Recorder knows, and how far its process is in each.

use crate::table::{Text, Time};

crate::table! {
    python.process_groups, Agent, "One row per process group in an imported dump of PyTorch's Flight Recorder, with how far that process is, or in an execution trace.";
    sort: [ts];
    examples: [
        "SELECT group_name, description, rank, last_seq, last_enqueued, last_completed, pending FROM python.process_groups ORDER BY group_name, rank",
        "SELECT group_name, MIN(last_seq) AS least, MAX(last_seq) AS most FROM python.process_groups GROUP BY group_name HAVING MIN(last_seq) < MAX(last_seq)",
    ];
    capture: Text, "", "The dump or execution trace, as python.captures calls it.";
    ts: Option<Time>, "", "When its newest operation in the dump was issued.";
    group_name: Text, "", "Name of the group.";
    description: Option<Text>, "", "What the program calls it; several groups may have the same.";
    number: Option<i64>, "", "Number that the process gives it. Where no operation shows it, it is found by the order in which groups were made, or NULL.";
    group_size: Option<i32>, "ranks", "Ranks in it; NULL where the dump does not list them (gloo).";
    ranks: Option<Text>, "", "These ranks, in JSON.";
    last_seq: Option<i64>, "", "Largest number of its collectives in the dump; NULL without operations.";
    last_enqueued: Option<i64>, "", "Number that torch reports as issued last; it may count sends and receives too. NULL for none.";
    last_started: Option<i64>, "", "Number that torch reports as begun last on the device. NULL for none.";
    last_completed: Option<i64>, "", "Number that torch reports as completed last. NULL for none.";
    operations: i64, "", "Its rows of python.flight_recorder from this dump.";
    pending: i64, "", "Those of them that were not finished.";
}
