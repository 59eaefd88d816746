//! `probe.overhead`: what recording costs, by the agents' own reckoning and by measurement.

use crate::table::Time;

crate::table! {
    probe.overhead, Agent, "What recording costs: one row per process every two seconds while it trains, and one when it ends.";
    sort: [ts];
    examples: [
        "SELECT ts, rank, step, detail_stride, estimated_share, measured_ratio, measured_low, measured_high FROM probe.overhead ORDER BY ts DESC LIMIT 10",
    ];
    ts: Time, "", "When the row was made.";
    step: i64, "", "Steps finished by then.";
    budget: f64, "", "Maximum cost of recording, as a share of step time (overhead_budget).";
    detail_stride: i32, "", "Modules are recorded in one step of this many; 1 is every step, 0 none. With detail=1/N these are the multiples of N. With detail=auto the position moves by one each time, so that it never keeps coinciding with what a program does every few steps.";
    step_duration: Option<f64>, "s", "Median duration of the newest steps without detail, or of all newest steps when every step has detail. NULL until there are enough.";
    events: Option<f64>, "", "Module calls' and autograd nodes' begins and ends, and other events, in the newest step recorded in detail; NULL until there is one.";
    events_without_detail: Option<f64>, "", "The same in the newest step recorded without detail.";
    event_cost: f64, "s", "What the begin or end of a module call costs, measured in this process when the agent started.";
    node_cost: f64, "s", "What the begin and end of an autograd node cost, measured when the agent started; 0 where nodes are not watched.";
    estimated_cost: Option<f64>, "s", "Mean time that recording takes in a step, over steps with and without detail, estimated from counts and costs of events.";
    estimated_share: Option<f64>, "", "The same as a share of step_duration.";
    measured_ratio: Option<f64>, "", "Duration of a step with detail over that of its neighbours without: the median over the newest pairs, of 256 at most. NULL below 8 pairs, and so also when every step or no step has detail.";
    measured_low: Option<f64>, "", "Lower end of the 95 % interval of measured_ratio (order statistics).";
    measured_high: Option<f64>, "", "Its upper end.";
    measured_pairs: i32, "", "Pairs that measured_ratio is the median of.";
    ring_bytes: i64, "B", "Memory that the rings of all threads have used.";
    buffer_bytes: i64, "B", "Rows that wait for the collector's acknowledgement.";
    string_bytes: i64, "B", "Memory for names of modules and other text.";
    sender_cpu: Option<f64>, "", "CPU time of the agent's background thread since the row before, as a share of one core; NULL in the first row.";
}
