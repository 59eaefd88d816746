//! The measurements of one side of a comparison.

use std::collections::BTreeMap;

/// Number of steps that are compared without a window: the last ones, so that the warm-up is left out.
pub const LAST_STEPS: i64 = 1000;

/// The parts of a step, the whole step first: their names, and their expressions over `python.steps`.
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
pub struct ComparedRun {
    /// Steps that every process finished.
    pub steps: Vec<i64>,
    /// Steps that only some processes finished; they are not compared.
    pub left_out: usize,
    /// Steps that only call a model, in a run that trains; they are not compared.
    pub untrained: usize,
    /// Why processes are not compared, for people; None where all are.
    pub processes_left_out: Option<String>,
    /// Processes that finished each of `steps`.
    pub processes: usize,
    /// Times in the order of [`PARTS`], each in the order of `steps`.
    pub parts: Vec<Vec<f64>>,
    /// Times in the order of `steps`; None where the step was not recorded in detail, or the module not timed in it.
    pub modules: BTreeMap<Key, Vec<Option<f64>>>,
    /// Clocks of the times: host, device.
    pub clocks: Vec<String>,
}
