//! Statistics of samples: medians, percentiles, and whether one of two expressions is faster beyond the noise.

use serde_json::{Value, json};

use super::answer::{TimedExpressions, Timing};
use crate::block_bootstrap::{BootstrapDraws, median, middle95};

/// Samples that an interval needs, and the outer percentiles.
const MIN_FOR_INTERVAL: usize = 8;
const MIN_FOR_P95: usize = 20;
const MIN_FOR_P99: usize = 100;
const SEED: u64 = 1;

/// Statistics of one timing, in seconds a call.
#[derive(Debug, Clone)]
pub(super) struct TimingStatistics {
    pub(super) timing: Timing,
    pub(super) expression: String,
    pub(super) median: f64,
    pub(super) interval: Option<(f64, f64)>,
    pub(super) p5: Option<f64>,
    pub(super) p95: Option<f64>,
    pub(super) p99: Option<f64>,
}

/// The ratio of the second expression to the first.
#[derive(Debug, Clone)]
pub(super) struct TimingRatio {
    pub(super) part: String,
    pub(super) ratio: f64,
    pub(super) interval: Option<(f64, f64)>,
}

/// Statistics of all timings, and the comparisons of the two expressions.
#[derive(Debug, Clone)]
pub(super) struct BenchStatistics {
    pub(super) each: Vec<TimingStatistics>,
    pub(super) compared: Vec<TimingRatio>,
}

pub(super) fn compute(timed: &TimedExpressions, expressions: &[&str]) -> BenchStatistics {
    let each: Vec<TimingStatistics> = timed.timings.iter().filter_map(|timing| figures(timing, expressions)).collect();
    let of_index = |index| each.iter().filter(move |figures| figures.timing.index == index);
    let compared = of_index(0)
        .filter_map(|a| Some((a, of_index(1).find(|b| b.timing.part == a.timing.part)?)))
        .map(|(a, b)| compare(a, b))
        .collect();
    BenchStatistics { each, compared }
}

fn figures(timing: &Timing, expressions: &[&str]) -> Option<TimingStatistics> {
    let samples = &timing.samples;
    let draws = BootstrapDraws::new(samples.len(), SEED);
    let mut ordered = samples.clone();
    ordered.sort_unstable_by(f64::total_cmp);
    let percentile = |part: f64, least: usize| {
        let index = (part * (ordered.len().max(1) - 1) as f64).round() as usize;
        ordered.get(index).copied().filter(|_| ordered.len() >= least)
    };
    Some(TimingStatistics {
        timing: timing.clone(),
        expression: (*expressions.get(timing.index)?).to_owned(),
        median: median(samples.clone())?,
        interval: enough(samples).then(|| middle95(medians(&draws, samples))).flatten(),
        p5: percentile(0.05, MIN_FOR_P95),
        p95: percentile(0.95, MIN_FOR_P95),
        p99: percentile(0.99, MIN_FOR_P99),
    })
}

fn enough(samples: &[f64]) -> bool {
    samples.len() >= MIN_FOR_INTERVAL
}

fn medians(draws: &BootstrapDraws, samples: &[f64]) -> Vec<f64> {
    let values: Vec<Option<f64>> = samples.iter().copied().map(Some).collect();
    draws.medians(&values).into_iter().flatten().collect()
}

/// Samples were taken in turn, so the same ones of both are drawn: other load on the machine met both.
fn compare(a: &TimingStatistics, b: &TimingStatistics) -> TimingRatio {
    let (in_a, in_b) = (&a.timing.samples, &b.timing.samples);
    let both = in_a.len().min(in_b.len());
    let draws = BootstrapDraws::new(both, SEED);
    let ratios = || {
        let (a, b) = (medians(&draws, &in_a[..both]), medians(&draws, &in_b[..both]));
        a.into_iter().zip(b).map(|(a, b)| b / a).collect()
    };
    let interval = enough(&in_a[..both]).then(|| middle95(ratios())).flatten();
    TimingRatio { part: a.timing.part.clone(), ratio: b.median / a.median, interval }
}

impl TimingRatio {
    /// faster, slower, same (neither, beyond the noise), or unknown (too few samples).
    pub(super) fn verdict(&self) -> &'static str {
        match self.interval {
            None => "unknown",
            Some((_, high)) if high < 1.0 => "faster",
            Some((low, _)) if low > 1.0 => "slower",
            Some(_) => "same",
        }
    }

    pub(super) fn json(&self) -> Value {
        let (low, high) = self.interval.unzip();
        json!({ "part": self.part, "ratio": self.ratio, "low": low, "high": high, "verdict": self.verdict() })
    }
}

impl TimingStatistics {
    /// a or b.
    pub(super) fn name(&self) -> &'static str {
        if self.timing.index == 0 { "a" } else { "b" }
    }

    pub(super) fn json(&self) -> Value {
        let (low, high) = self.interval.unzip();
        let timing = &self.timing;
        json!({
            "name": self.name(), "expression": self.expression, "part": timing.part, "inputs": timing.inputs,
            "median": self.median, "low": low, "high": high, "p5": self.p5, "p95": self.p95, "p99": self.p99,
            "samples": timing.samples.len(), "calls_per_sample": timing.calls_per_sample,
            "warm_up_calls": timing.warm_up_calls, "settled": timing.is_settled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(index: usize, samples: Vec<f64>) -> Timing {
        let (part, inputs) = (String::new(), String::new());
        Timing { index, part, inputs, samples, calls_per_sample: 1, warm_up_calls: 10, is_settled: true }
    }

    fn all(a: Vec<f64>, b: Vec<f64>) -> BenchStatistics {
        let kept = super::super::answer::SavedState { tensors: 0, bytes: 0, seconds: 0.0, put_back: 0 };
        compute(
            &TimedExpressions { timings: vec![timing(0, a), timing(1, b)], kept, threads: 1, remarks: Vec::new() },
            &["one", "two"],
        )
    }

    /// A machine that gets slower meanwhile, and a noise of a percent.
    fn samples(count: u32, scale: f64) -> Vec<f64> {
        (0..count).map(|i| scale * (1.0 + f64::from(i) / 40.0 + 0.01 * f64::from(i * 7 % 11))).collect()
    }

    #[test]
    fn a_difference_is_told_from_none_on_a_machine_that_gets_slower() {
        let verdict = |b: f64| all(samples(40, 1.0), samples(40, b)).compared[0].verdict();
        assert_eq!((verdict(0.97), verdict(1.03), verdict(1.0)), ("faster", "slower", "same"));
        assert_eq!(all(samples(7, 1.0), samples(7, 0.5)).compared[0].verdict(), "unknown");
    }

    #[test]
    fn few_samples_have_no_outer_percentiles() {
        let found = &all(samples(19, 1.0), samples(120, 1.0)).each;
        assert_eq!((found[0].p5, found[0].p95, found[0].p99), (None, None, None));
        assert!(found[0].interval.is_some_and(|(low, high)| low <= found[0].median && found[0].median <= high));
        let expected: Vec<f64> = {
            let mut ordered = samples(120, 1.0);
            ordered.sort_unstable_by(f64::total_cmp);
            [6, 113, 118].iter().map(|index| ordered[*index]).collect()
        };
        assert_eq!([found[1].p5, found[1].p95, found[1].p99].map(Option::unwrap).to_vec(), expected);
    }
}
