//! Replays steps without a cause, to compute what they would have taken.
//!
//! A step of several ranks is over when the slowest rank has done its own part and the data that the ranks exchange has arrived:
//! the longest of the ranks' own times plus the shortest of their waits. The difference to the observed time is the
//! model's error.

use super::steps::{COMM, DiagnosedSteps, Ticks};

/// The error up to which savings are promised.
pub(crate) const FITS: f64 = 0.05;

/// Time that could be taken from a part of a process's steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TimeReduction {
    pub(crate) part: usize,
    pub(crate) process: usize,
    pub(crate) by: Vec<Ticks>,
}

/// The time that several reductions take from each part, by process and step; never more than the part has.
pub(crate) fn taken(steps: &DiagnosedSteps, reductions: &[&TimeReduction]) -> Vec<Vec<[Ticks; 9]>> {
    let mut taken = vec![vec![[0; 9]; steps.count()]; steps.processes.len()];
    for reduction in reductions {
        for (step, by) in reduction.by.iter().enumerate() {
            let whole = steps.parts[reduction.process][step][reduction.part].max(0);
            let part = &mut taken[reduction.process][step][reduction.part];
            *part = (*part + (*by).max(0)).min(whole);
        }
    }
    taken
}

/// The time of each step without the time of `reductions`.
pub(crate) fn replay(steps: &DiagnosedSteps, reductions: &[&TimeReduction]) -> Vec<Ticks> {
    let taken = taken(steps, reductions);
    (0..steps.count())
        .map(|step| {
            let left = |process: usize, part: usize| steps.parts[process][step][part] - taken[process][step][part];
            let all = 0..steps.processes.len();
            let own =
                |process: usize| (0..9).filter(|part| *part != COMM).map(|part| left(process, part)).sum::<Ticks>();
            let longest = all.clone().map(own).max().unwrap_or(0);
            longest + all.map(|process| left(process, COMM)).min().unwrap_or(0)
        })
        .collect()
}

/// The difference of the replay without reductions to the observed time, as a share of the observed time.
pub(crate) fn error(steps: &DiagnosedSteps) -> f64 {
    let replayed: Ticks = replay(steps, &[]).iter().sum();
    let observed = steps.observed();
    if observed > 0.0 { replayed as f64 / observed - 1.0 } else { 0.0 }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::super::steps::DiagnosedProcess;
    use super::*;

    /// Steps of ranks whose parts are as given.
    pub(crate) fn steps_of(parts: Vec<Vec<[Ticks; 9]>>) -> DiagnosedSteps {
        DiagnosedSteps {
            processes: (0..parts.len())
                .map(|rank| DiagnosedProcess { host: "node".into(), pid: 100 + rank as i64, rank: Some(rank as i64) })
                .collect(),
            numbers: (0..parts.first().map_or(0, Vec::len) as i64).collect(),
            durations: parts.iter().map(|of| of.iter().map(|parts| parts.iter().sum()).collect()).collect(),
            parts,
            ..DiagnosedSteps::default()
        }
    }

    /// Some steps of one to four ranks.
    pub(crate) fn any_steps() -> impl Strategy<Value = DiagnosedSteps> {
        (1_usize..5, 1_usize..30).prop_flat_map(|(ranks, count)| {
            let part = prop::array::uniform9(0_i64..1_000_000);
            prop::collection::vec(prop::collection::vec(part, count), ranks).prop_map(steps_of)
        })
    }

    #[test]
    fn one_rank_is_replayed_exactly() {
        let steps = steps_of(vec![vec![[1, 2, 3, 4, 5, 6, 7, 8, 0]; 3]]);
        assert_eq!((replay(&steps, &[]), error(&steps)), (vec![36; 3], 0.0));
        let most = TimeReduction { part: 1, process: 0, by: vec![1, 9, -9] };
        assert_eq!(replay(&steps, &[&most]), [35, 34, 36], "never more than there is, and never less than nothing");
    }

    #[test]
    fn what_the_slow_rank_does_saves_what_the_others_waited() {
        let slow = [50, 20, 20, 5, 1, 0, 0, 4, 0];
        let quick = [10, 20, 20, 5, 41, 0, 0, 4, 0];
        let steps = steps_of(vec![vec![quick; 4], vec![slow; 4]]);
        assert_eq!((replay(&steps, &[]), error(&steps)), (vec![100; 4], 0.0));
        let of_slow = TimeReduction { part: 0, process: 1, by: vec![40; 4] };
        assert_eq!(replay(&steps, &[&of_slow]), [60; 4]);
        let of_quick = TimeReduction { part: 0, process: 0, by: vec![10; 4] };
        assert_eq!(replay(&steps, &[&of_quick]), [100; 4], "a rank that waits anyway saves nothing");
    }

    proptest! {
        #[test]
        fn less_work_never_takes_longer(steps in any_steps(), part in 0_usize..9, by in 0_i64..1_000_000) {
            let reduction = TimeReduction { part, process: 0, by: vec![by; steps.count()] };
            let (with, without) = (replay(&steps, &[]), replay(&steps, &[&reduction]));
            prop_assert!(with.iter().zip(&without).all(|(with, without)| without <= with && *without >= 0));
            let twice = replay(&steps, &[&reduction, &reduction]);
            prop_assert!(without.iter().zip(&twice).all(|(once, twice)| twice <= once));
        }

        #[test]
        fn the_order_of_ranks_does_not_matter(steps in any_steps()) {
            let mut other = steps.clone();
            other.parts.reverse();
            prop_assert_eq!(replay(&steps, &[]), replay(&other, &[]));
        }
    }
}
