//! Event counts and durations of the newest steps, with detail and without.
//!
//! All values are medians: a busy machine takes the processor away now and then, which falsifies single steps.

use std::collections::VecDeque;

use super::persist::persist;
use crate::record::RecordKind;

/// The largest number of steps that are remembered.
const STEPS: usize = 4096;
/// The largest number of remembered pairs of steps with and without detail.
const PAIRS: usize = 256;
/// The smallest number of pairs with a ratio.
const MIN_PAIRS: usize = 8;
/// The newest steps: those of the last second, and at least [`RECENT_STEPS`].
const RECENT_SECONDS: f64 = 1.0;
const RECENT_STEPS: usize = 8;
/// The steps that the newest ones are compared with: those of half a minute before, at least [`BASELINE_STEPS`] over at least
/// [`MIN_BASELINE_SECONDS`].
const BASELINE_SECONDS: f64 = 30.0;
const BASELINE_STEPS: usize = 32;
const MIN_BASELINE_SECONDS: f64 = 2.0;
/// Number of first steps, which are warm-up and not counted.
const WARMUP: usize = 10;

/// Events of a step by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepEvents {
    /// Begins and ends that cost as much as those of a module call.
    pub plain: u64,
    /// Autograd nodes.
    pub nodes: u64,
    /// Events recorded on a device's stream.
    pub marks: u64,
}

persist!(StepEvents { plain, nodes, marks });

impl StepEvents {
    pub(crate) fn plus(self, more: Self) -> Self {
        Self { plain: self.plain + more.plain, nodes: self.nodes + more.nodes, marks: self.marks + more.marks }
    }

    pub(crate) fn minus(self, less: Self) -> Self {
        Self {
            plain: self.plain.saturating_sub(less.plain),
            nodes: self.nodes.saturating_sub(less.nodes),
            marks: self.marks.saturating_sub(less.marks),
        }
    }

    /// Number of begins and ends of all kinds.
    pub fn events(&self) -> u64 {
        self.plain + 2 * self.nodes
    }
}

/// The ratio of steps with detail to those without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DetailRatio {
    pub median: f64,
    /// 95 % interval, by order statistics.
    pub low: f64,
    pub high: f64,
}

#[derive(Debug, Clone, Copy)]
struct MeteredStep {
    number: i64,
    seconds: f64,
    detail: bool,
}

/// Event counts and durations of the newest steps, with detail and without.
#[derive(Debug, Default)]
pub struct DetailMeter {
    counts: StepEvents,
    with: Option<StepEvents>,
    without: Option<StepEvents>,
    steps: VecDeque<MeteredStep>,
    ended_steps: usize,
    pairs: VecDeque<f64>,
    /// The last step of the newest pair.
    paired: Option<i64>,
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

impl DetailMeter {
    /// Counts an event of the current step.
    #[inline]
    pub fn count(&mut self, kind: RecordKind) {
        match kind {
            RecordKind::NodeStart => self.counts.nodes += 1,
            // Copies, reads of tensors and memory at modules are in few steps, and their cost is measured there.
            RecordKind::NodeEnd | RecordKind::Copy | RecordKind::Sync | RecordKind::Allocated => {}
            RecordKind::CheckpointBegin | RecordKind::CheckpointEnd | RecordKind::Saved => {}
            _ => self.counts.plain += 1,
        }
    }

    /// Counts an event of a device in the current step.
    #[inline]
    pub fn count_mark(&mut self) {
        self.counts.marks += 1;
    }

    /// Events of the current step so far.
    pub(crate) fn so_far(&self) -> StepEvents {
        self.counts
    }

    /// Corrects the counts of the current step, where events turn out to be part of training or not.
    pub(crate) fn set(&mut self, counts: StepEvents) {
        self.counts = counts;
    }

    /// Ends the current step. `seconds` is None where its times were lost.
    pub fn end_step(&mut self, number: i64, seconds: Option<f64>, detail: bool) {
        let counts = std::mem::take(&mut self.counts);
        let Some(seconds) = seconds else { return };
        if detail {
            self.with = Some(counts)
        } else {
            self.without = Some(counts)
        }
        self.ended_steps += 1;
        if self.ended_steps <= WARMUP {
            return;
        }
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(MeteredStep { number, seconds, detail });
        self.pair();
    }

    /// Compares a step with its two neighbours, if those were recorded the other way. No step is in two pairs: neighbours in
    /// time are alike, so pairs that share steps would make the interval too narrow.
    fn pair(&mut self) {
        let [.., a, b, c] = self.steps.make_contiguous() else { return };
        if a.number + 2 != c.number
            || self.paired.is_some_and(|paired| a.number <= paired)
            || a.detail != c.detail
            || a.detail == b.detail
        {
            return;
        }
        let around = (a.seconds + c.seconds) / 2.0;
        let ratio = if b.detail { b.seconds / around } else { around / b.seconds };
        if ratio.is_finite() {
            self.paired = Some(c.number);
            if self.pairs.len() == PAIRS {
                self.pairs.pop_front();
            }
            self.pairs.push_back(ratio);
        }
    }

    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The ratio of the durations with detail and without; None until there are enough pairs.
    pub fn ratio(&self) -> Option<DetailRatio> {
        let count = self.pairs.len();
        if count < MIN_PAIRS {
            return None;
        }
        let mut sorted: Vec<f64> = self.pairs.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        // The median lies between these two of the sorted values in 95 of 100 cases, whatever they are distributed like.
        let outside = ((count as f64 - 1.96 * (count as f64).sqrt()) / 2.0).floor() as usize;
        let outside = outside.clamp(1, count / 2);
        Some(DetailRatio { median: sorted[count / 2], low: sorted[outside - 1], high: sorted[count - outside] })
    }

    /// Events of the newest step with detail, and without.
    pub fn counts(&self) -> (Option<StepEvents>, Option<StepEvents>) {
        (self.with, self.without)
    }

    /// Median duration of the newest steps, of those without detail where there are enough.
    pub fn step_seconds(&self) -> Option<f64> {
        let newest = || self.steps.iter().rev().take(64);
        let without: Vec<f64> = newest().filter(|step| !step.detail).map(|step| step.seconds).collect();
        let seconds = if without.len() >= RECENT_STEPS { without } else { newest().map(|step| step.seconds).collect() };
        if seconds.len() < RECENT_STEPS { None } else { median(seconds) }
    }

    /// Median durations of the last second's steps, and of those of half a minute before.
    pub fn recent_and_baseline(&self) -> Option<(f64, f64)> {
        let mut newest = self.steps.iter().rev().map(|step| step.seconds).peekable();
        let mut take = |least: usize, seconds: f64| {
            let (mut taken, mut sum) = (Vec::new(), 0.0);
            while let Some(step) = newest.peek() {
                if taken.len() >= least && sum >= seconds {
                    break;
                }
                sum += step;
                taken.extend(newest.next());
            }
            (taken, sum)
        };
        let (recent, _) = take(RECENT_STEPS, RECENT_SECONDS);
        let (baseline, long) = take(BASELINE_STEPS, BASELINE_SECONDS);
        if baseline.len() < BASELINE_STEPS || long < MIN_BASELINE_SECONDS {
            return None;
        }
        Some((median(recent)?, median(baseline)?))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_detail_are_compared_with_their_neighbours() {
        let mut meter = DetailMeter::default();
        // The machine gets slower by half meanwhile, and every 50th step is a slow one.
        for number in 0..400 {
            let detail = number % 4 == 0;
            let drift = 1.0 + number as f64 / 800.0;
            let hiccup = if number % 50 == 0 { 5.0 } else { 1.0 };
            meter.count(RecordKind::Enter);
            meter.count(RecordKind::NodeStart);
            meter.count(RecordKind::NodeEnd);
            meter.end_step(number, Some(0.01 * drift * hiccup * if detail { 1.06 } else { 1.0 }), detail);
            assert_eq!(meter.ratio().is_some(), meter.pairs() >= MIN_PAIRS);
        }
        let ratio = meter.ratio().unwrap();
        assert!((ratio.median - 1.06).abs() < 0.002 && ratio.low <= ratio.median && ratio.median <= ratio.high);
        assert!(ratio.low > 1.05 && ratio.high < 1.07, "{ratio:?}");
        assert_eq!(meter.counts().0, Some(StepEvents { plain: 1, nodes: 1, marks: 0 }));
        assert!((meter.step_seconds().unwrap() - 0.0149).abs() < 0.0005);
    }

    #[test]
    fn no_step_is_in_two_pairs_and_gaps_are_none() {
        let mut meter = DetailMeter::default();
        for number in 0..30 {
            meter.end_step(number, Some(1.0), number % 2 == 0);
        }
        assert_eq!(meter.pairs(), 6);
        let mut gaps = DetailMeter::default();
        for number in 0..60 {
            gaps.end_step(number, (number % 3 != 0).then_some(1.0), number % 2 == 0);
        }
        assert_eq!(gaps.pairs(), 0);
        assert_eq!(gaps.ratio(), None);
    }

    #[test]
    fn a_slower_second_stands_out_against_half_a_minute() {
        let mut meter = DetailMeter::default();
        for number in 0..3000 {
            meter.end_step(number, Some(0.002), true);
        }
        assert_eq!(meter.recent_and_baseline(), Some((0.002, 0.002)));
        for number in 3000..3060 {
            meter.end_step(number, Some(0.02), true);
        }
        assert_eq!(meter.recent_and_baseline(), Some((0.02, 0.002)));
        let mut short = DetailMeter::default();
        for number in 0..60 {
            short.end_step(number, Some(0.002), true);
        }
        assert_eq!(short.recent_and_baseline(), None, "the beginning of a run is no baseline");
    }
}
