//! Steps of a capture, by time.

/// A range that begins and ends a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StepInterval {
    pub ts: i64,
    pub end: i64,
    pub number: i64,
}

/// The step that contains `ts`. `steps` are in order of time.
pub(crate) fn step_at(steps: &[StepInterval], ts: i64) -> Option<i64> {
    let before = steps.partition_point(|step| step.ts <= ts);
    let step = steps.get(before.checked_sub(1)?)?;
    (ts < step.end || ts == step.ts).then_some(step.number)
}
