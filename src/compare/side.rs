//! The measurements of one side of a comparison.

use std::collections::BTreeMap;

use probe_proto::step_part::StepPart;

/// Number of steps that are compared without a window: the last ones, so that the warm-up is left out.
pub const LAST_STEPS: i64 = 1000;

/// The parts of a step, the whole step first: their names, and their expressions over `python.steps`.
pub const PARTS: [(&str, &str); 9] = {
    let mut parts = [("all", "duration"); 9];
    let mut index = 0;
    while index < StepPart::ALL.len() {
        let part = StepPart::ALL[index];
        index += 1;
        parts[index] = (part.as_str(), part.time());
    }
    parts
};

/// A module and a stage; NULL is backward work that belongs to no module.
pub type ModuleStage = (Option<String>, String);

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
    pub modules: BTreeMap<ModuleStage, Vec<Option<f64>>>,
    /// Clocks of the times: host, device.
    pub clocks: Vec<String>,
}
