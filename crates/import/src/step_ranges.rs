//! Finds the ranges that are steps, and numbers them.

use std::collections::HashMap;

use crate::kinds;
use crate::range_patterns::StepRange;
use crate::steps::StepInterval;

/// Most steps of a process.
const MAX_STEPS: usize = 1 << 20;
/// Most texts whose match is remembered.
const MAX_TEXTS: usize = 1 << 16;

/// Collects steps.
#[derive(Debug)]
pub(crate) struct StepRanges {
    pattern: Option<StepRange>,
    /// By the number of a text: whether it is a step's, and the step's number.
    known: HashMap<u32, Option<Option<i64>>>,
    steps: Vec<(i64, i64, Option<i64>)>,
}

impl StepRanges {
    /// Takes ranges that `pattern` matches as steps; without a pattern, those with the names of torch.profiler's steps.
    pub(crate) fn new(pattern: Option<&StepRange>) -> Self {
        Self { pattern: pattern.cloned(), known: HashMap::new(), steps: Vec::new() }
    }

    /// Takes a range, whose text has the number `number`.
    pub(crate) fn add(&mut self, number: u32, text: &str, ts: i64, end: i64) {
        let matched = self.known.get(&number).copied().unwrap_or_else(|| match &self.pattern {
            Some(pattern) => pattern.matches(text),
            None => kinds::step_number(text).map(Some),
        });
        if self.known.len() < MAX_TEXTS {
            self.known.insert(number, matched);
        }
        if let Some(step) = matched
            && self.steps.len() < MAX_STEPS
        {
            self.steps.push((ts, end, step));
        }
    }

    /// The steps in order of time. Where a text has no number, or all have the same number, the steps are counted from 0.
    pub(crate) fn finish(mut self) -> Vec<StepInterval> {
        self.steps.sort_unstable();
        let first = self.steps.first().and_then(|(_, _, number)| *number);
        let are_numbered = self.steps.iter().all(|(_, _, number)| number.is_some())
            && (self.steps.len() < 2 || self.steps.iter().any(|(_, _, number)| *number != first));
        self.steps
            .into_iter()
            .enumerate()
            .map(|(index, (ts, end, number))| {
                let number = number.filter(|_| are_numbered).unwrap_or(index as i64);
                StepInterval { ts, end, number }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(pattern: Option<&str>, texts: &[&str]) -> Vec<i64> {
        let pattern = pattern.map(|pattern| StepRange::parse(pattern).unwrap());
        let mut ranges = StepRanges::new(pattern.as_ref());
        for (index, text) in texts.iter().enumerate() {
            let number = texts.iter().position(|other| other == text).unwrap() as u32;
            ranges.add(number, text, 10 * index as i64, 10 * index as i64 + 9);
        }
        ranges.finish().iter().map(|step| step.number).collect()
    }

    #[test]
    fn steps_have_their_own_numbers_or_are_counted() {
        assert_eq!(numbers(None, &["ProfilerStep#7", "load", "ProfilerStep#8"]), [7, 8]);
        assert_eq!(numbers(Some(r"^iteration (\d+)"), &["iteration 3", "iteration 4", "ProfilerStep#9"]), [3, 4]);
        assert_eq!(numbers(Some("^step$"), &["step", "step", "step"]), [0, 1, 2]);
        assert_eq!(numbers(Some(r"^step_v2"), &["step_v2", "step_v2"]), [0, 1], "2 is no number of a step");
        assert_eq!(numbers(Some("^(warm up|step 1)$"), &["warm up", "step 1"]), [0, 1]);
    }
}
