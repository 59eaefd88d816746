//! What is known of one side of a comparison.

use std::collections::BTreeMap;

/// Most steps of a side that are compared where no window says which: the last ones, so that warming up is not in it.
pub const LAST_STEPS: i64 = 1000;

/// The parts of a step, the whole of it first: how they are called, and what they are in `python.steps`.
pub const PARTS: [(&str, &str); 9] = [
    ("all", "duration"),
    ("data", "data_time"),
    ("forward", "forward_time"),
    ("backward", "backward_time"),
    ("optimizer", "optimizer_time"),
    ("comm", "comm_time"),
    ("validation", "COALESCE(validation_time, 0)"),
    ("checkpoint", "COALESCE(checkpoint_time, 0)"),
    ("other", "other_time"),
];

/// A module and a stage; NULL is backward work that belongs to no module.
pub type Key = (Option<String>, String);

/// What was measured on one side, in seconds a step: means over the processes that ran it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Side {
    /// Steps that every process finished.
    pub steps: Vec<i64>,
    /// Steps that only some processes finished; they are not compared.
    pub left_out: usize,
    /// Why processes are not compared, for people; None where all are.
    pub processes_left_out: Option<String>,
    /// Processes that finished each of `steps`.
    pub processes: usize,
    /// As [`PARTS`], each as `steps`.
    pub parts: Vec<Vec<f64>>,
    /// As `steps`; None where the step was not recorded in detail, or the module not timed in it.
    pub modules: BTreeMap<Key, Vec<Option<f64>>>,
    /// Clocks of the times: host, device.
    pub clocks: Vec<String>,
}
