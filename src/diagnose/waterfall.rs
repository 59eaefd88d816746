//! The waterfall: where the time of a step goes. The rows sum to the recorded time of the steps exactly, in whole ticks.
//!
//! The time of a step is that of the rank whose own work took longest: it is the one that the others wait for. What a
//! finding claims of it comes first; of what is left, each part is what the middle rank spent there (`typical` in the
//! median step, `excess` above it in all), `uneven` is what the slowest rank spent beyond that, and `comm` is its wait.

use super::replay::{TimeReduction, taken};
use super::statistics::middle;
use super::steps::{COMM, DiagnosedSteps, PARTS, Ticks};

/// A row of the waterfall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaterfallRow {
    /// The part of the step, or `uneven`.
    pub(crate) part: &'static str,
    /// The index of the finding that claims the time of this row.
    pub(crate) finding: Option<usize>,
    /// The time in the median step, times the number of steps.
    pub(crate) typical: Ticks,
    /// Time above the median in some steps, less time below it in others.
    pub(crate) excess: Ticks,
}

/// The waterfall of `steps`, of which the findings claim `claims`.
pub(crate) fn waterfall(steps: &DiagnosedSteps, claims: &[Vec<TimeReduction>]) -> Vec<WaterfallRow> {
    let slowest: Vec<usize> = (0..steps.count()).map(|step| slowest(steps, step)).collect();
    let mut claimed_rows = Vec::new();
    let mut before: Vec<&TimeReduction> = Vec::new();
    let mut gone = taken(steps, &[]);
    for (finding, reductions) in claims.iter().enumerate() {
        before.extend(reductions);
        let now = taken(steps, &before);
        for (part, name) in PARTS.iter().enumerate() {
            let claimed = |(step, of): (usize, &usize)| now[*of][step][part] - gone[*of][step][part];
            let claimed: Vec<Ticks> = slowest.iter().enumerate().map(claimed).collect();
            claimed_rows.extend(row(name, Some(finding), claimed));
        }
        gone = now;
    }
    let left = |process: usize, step: usize, part: usize| steps.parts[process][step][part] - gone[process][step][part];
    let mut uneven = vec![0; steps.count()];
    let mut rest = Vec::new();
    for (part, name) in PARTS.iter().enumerate() {
        let shared: Vec<Ticks> = (0..steps.count())
            .map(|step| {
                let of_slowest = left(slowest[step], step, part);
                if part == COMM {
                    return of_slowest;
                }
                let mut of_all: Vec<Ticks> =
                    (0..steps.processes.len()).map(|process| left(process, step, part)).collect();
                of_all.sort_unstable();
                let of_middle = of_all[(of_all.len() - 1) / 2];
                uneven[step] += of_slowest - of_middle;
                of_middle
            })
            .collect();
        rest.extend(row(name, None, shared));
    }
    rest.extend(row("uneven", None, uneven));
    rest.extend(claimed_rows);
    rest
}

/// The process whose own work took longest in a step; of several the first.
fn slowest(steps: &DiagnosedSteps, step: usize) -> usize {
    let own = |process: &usize| steps.duration(*process, step) - steps.parts[*process][step][COMM];
    (0..steps.processes.len()).rev().max_by_key(own).unwrap_or(0)
}

/// The row of a value in each step; None where the value is 0 in all steps.
fn row(part: &'static str, finding: Option<usize>, values: Vec<Ticks>) -> Option<WaterfallRow> {
    if values.iter().all(|value| *value == 0) {
        return None;
    }
    let (sum, count) = (values.iter().sum::<Ticks>(), values.len() as Ticks);
    let typical = middle(values) * count;
    Some(WaterfallRow { part, finding, typical, excess: sum - typical })
}

/// The recorded duration of each step: that of the rank whose own work took longest.
pub(super) fn durations(steps: &DiagnosedSteps) -> Vec<Ticks> {
    (0..steps.count()).map(|step| steps.duration(slowest(steps, step), step)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::replay::tests::{any_steps, steps_of};
    use super::*;

    #[test]
    fn one_stall_is_excess_and_no_share() {
        let mut steps = vec![[0, 10, 20, 5, 0, 0, 0, 5, 0]; 10];
        steps[4][7] = 1005;
        let rows = waterfall(&steps_of(vec![steps]), &[]);
        let other = rows.iter().find(|row| row.part == "other").unwrap();
        assert_eq!((other.typical, other.excess), (50, 1000));
        assert_eq!(rows.iter().map(|row| row.part).collect::<Vec<_>>(), ["forward", "backward", "optimizer", "other"]);
    }

    #[test]
    fn what_a_finding_claims_is_its_own_row() {
        let steps = steps_of(vec![vec![[30, 10, 0, 0, 0, 0, 0, 0, 0]; 4]]);
        let claim = TimeReduction { part: 0, process: 0, by: vec![25; 4] };
        let rows = waterfall(&steps, &[vec![claim]]);
        let found: Vec<_> = rows.iter().map(|row| (row.part, row.finding, row.typical)).collect();
        assert_eq!(found, [("data", None, 20), ("forward", None, 40), ("data", Some(0), 100)]);
    }

    proptest! {
        /// Whatever the steps and whatever is claimed of them.
        #[test]
        fn the_rows_sum_to_the_steps(
            steps in any_steps(),
            claims in prop::collection::vec((0_usize..9, 0_usize..4, -1000_i64..1_000_000), 0..5),
        ) {
            let claims: Vec<Vec<TimeReduction>> = claims
                .into_iter()
                .map(|(part, process, by)| {
                    vec![TimeReduction { part, process: process % steps.processes.len(), by: vec![by; steps.count()] }]
                })
                .collect();
            let rows = waterfall(&steps, &claims);
            prop_assert_eq!(rows.iter().map(|row| row.typical + row.excess).sum::<Ticks>(), durations(&steps).iter().sum::<Ticks>());
        }
    }
}
