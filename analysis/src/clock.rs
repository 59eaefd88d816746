//! Ticks of the records' clock as points in time, in whole units, and those as seconds and as time of day.
//!
//! A point in time is rounded once, when its record is taken in, to a whole multiple of 2^-27 s (7.5 ns, less
//! than taking the record costs). From then on everything is a difference or a sum of whole numbers: the parts of a step sum to
//! the step and a module's own times to its total exactly, also as seconds, because floats hold such multiples without
//! rounding. And they are short: on disk they take less than half of what ticks in seconds would.

use std::collections::VecDeque;

use super::keep::keep;

/// The same moment on three clocks.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Of the records' clock.
    pub ticks: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`, which Python's `perf_counter` shows.
    pub monotonic_ns: u64,
    /// Nanoseconds since 1970, UTC.
    pub unix_ns: i64,
}

/// Units in a second.
pub(super) const SECOND: u64 = probe_proto::TIMES_PER_SECOND;

/// How far apart the clocks may drift before the time of day is set anew, in nanoseconds. Below it, times stay on one
/// line, so that rows keep their order.
const DRIFT: i64 = 1_000_000;

/// Stretches of the line that are remembered, one a drain: half a minute, longer than a backward pass.
const STRETCHES: usize = 300;

/// Converts ticks. Gets better with every [`Clock::compare`]: the further apart two samples, the smaller the error. What
/// was converted before stays what it was: the line goes on with its new slope from there.
#[derive(Debug)]
pub(super) struct Clock {
    first: Sample,
    unix_minus_monotonic: i64,
    /// The newest first.
    line: VecDeque<Stretch>,
    /// Newest ticks that became a point in time.
    newest: u64,
}

/// From `ticks` on, which are the point in time `at`, until the next one.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    ticks: u64,
    at: u64,
    ns_per_tick: f64,
}

keep!(Sample { ticks, monotonic_ns, unix_ns });
keep!(Clock { first, unix_minus_monotonic, line, newest });
keep!(Stretch { ticks, at, ns_per_tick });

impl Clock {
    /// A clock whose ticks are nanoseconds until a second sample says otherwise.
    pub(super) fn new(first: Sample) -> Self {
        Self {
            first,
            unix_minus_monotonic: first.unix_ns.wrapping_sub(first.monotonic_ns as i64),
            line: VecDeque::from([Stretch {
                ticks: first.ticks,
                at: (first.monotonic_ns as f64 * 1e-9 * SECOND as f64).round() as u64,
                ns_per_tick: 1.0,
            }]),
            newest: first.ticks,
        }
    }

    /// Whether `sample` is too close to the first one to tell how long a tick is.
    pub(super) fn is_new_at(&self, sample: Sample) -> bool {
        sample.monotonic_ns.saturating_sub(self.first.monotonic_ns) < 5_000_000
    }

    /// Takes another sample into account.
    pub(super) fn compare(&mut self, sample: Sample) {
        let ticks = sample.ticks.saturating_sub(self.first.ticks);
        let nanoseconds = sample.monotonic_ns.saturating_sub(self.first.monotonic_ns);
        if ticks > 0 && nanoseconds > 0 {
            let at = self.at(self.newest);
            self.line.truncate(STRETCHES);
            let ns_per_tick = nanoseconds as f64 / ticks as f64;
            self.line.push_front(Stretch { ticks: self.newest, at, ns_per_tick });
        }
        let difference = sample.unix_ns.wrapping_sub(sample.monotonic_ns as i64);
        if (difference - self.unix_minus_monotonic).abs() > DRIFT {
            self.unix_minus_monotonic = difference;
        }
    }

    /// The point in time of a record that was made at `ticks`.
    pub(super) fn take(&mut self, ticks: u64) -> u64 {
        self.newest = self.newest.max(ticks);
        self.at(ticks)
    }

    /// The point in time at `ticks`.
    pub(super) fn at(&self, ticks: u64) -> u64 {
        let stretch = self.line.iter().find(|stretch| stretch.ticks <= ticks).or(self.line.back());
        let Some(Stretch { ticks: from, at, ns_per_tick }) = stretch else { return 0 };
        let units = ticks.wrapping_sub(*from) as i64 as f64 * ns_per_tick * (SECOND as f64 * 1e-9);
        at.saturating_add_signed(units.round() as i64)
    }

    /// Nanoseconds since 1970 at a point in time.
    pub(super) fn unix_ns(&self, at: u64) -> i64 {
        let nanoseconds = (u128::from(at) * 1_000_000_000 + u128::from(SECOND / 2)) / u128::from(SECOND);
        (nanoseconds as i64).wrapping_add(self.unix_minus_monotonic)
    }

    /// Seconds that `ticks` take.
    pub(super) fn seconds_in(&self, ticks: u64) -> f64 {
        ticks as f64 * 1e-9 * self.line.front().map_or(1.0, |stretch| stretch.ns_per_tick)
    }

    /// Ticks in `nanoseconds`.
    pub(super) fn ticks(&self, nanoseconds: u64) -> u64 {
        (nanoseconds as f64 / self.line.front().map_or(1.0, |stretch| stretch.ns_per_tick)) as u64
    }
}

/// What lies between two points in time, in seconds: exact up to two years.
pub(super) fn seconds(units: u64) -> f64 {
    units as f64 / SECOND as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_time() {
        let mut clock = Clock::new(Sample { ticks: 1_000, monotonic_ns: 500, unix_ns: 1_000_000_500 });
        clock.compare(Sample { ticks: 3_001_000, monotonic_ns: 1_000_500, unix_ns: 1_001_000_500 });
        let (first, last) = (clock.take(1_000), clock.take(3_001_000));
        assert!((clock.unix_ns(first) - 1_000_000_500).abs() <= 4);
        assert!((clock.unix_ns(last) - 1_001_000_500).abs() <= 4);
        assert!((seconds(last - first) - 0.001).abs() < 8e-9);
        assert_eq!(clock.ticks(1_000_000), 3_000_000);
    }

    #[test]
    fn a_better_slope_makes_no_step() {
        let mut clock = Clock::new(Sample { ticks: 0, monotonic_ns: 0, unix_ns: 0 });
        clock.compare(Sample { ticks: 10_000, monotonic_ns: 5_100, unix_ns: 5_100 });
        let before = clock.take(9_000);
        clock.compare(Sample { ticks: 10_000_000_000, monotonic_ns: 5_000_000_000, unix_ns: 5_000_000_000 });
        assert_eq!(clock.take(9_000), before);
        assert_eq!(clock.take(9_000 + 2_000_000_000) - before, SECOND);
    }
}
