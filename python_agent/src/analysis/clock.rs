//! Ticks of the records' clock as seconds and as time of day.

use crate::recording::clock::Sample;

/// How far apart the clocks may drift before the time of day is set anew, in nanoseconds. Below it, times stay on one
/// straight line, so that rows keep their order.
const DRIFT: i64 = 1_000_000;

/// Converts ticks. Gets better with every [`Clock::compare`]: the further apart two samples, the smaller the error.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    first: Sample,
    ns_per_tick: f64,
    unix_minus_monotonic: i64,
}

impl Clock {
    /// A clock whose ticks are nanoseconds until a second sample says otherwise.
    pub(super) fn new(first: Sample) -> Self {
        Self { first, ns_per_tick: 1.0, unix_minus_monotonic: first.unix_ns.wrapping_sub(first.monotonic_ns as i64) }
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
            self.ns_per_tick = nanoseconds as f64 / ticks as f64;
        }
        let difference = sample.unix_ns.wrapping_sub(sample.monotonic_ns as i64);
        if (difference - self.unix_minus_monotonic).abs() > DRIFT {
            self.unix_minus_monotonic = difference;
        }
    }

    /// Nanoseconds since 1970 at `ticks`.
    pub(super) fn unix_ns(&self, ticks: u64) -> i64 {
        let since = ticks.wrapping_sub(self.first.ticks) as i64;
        let monotonic = self.first.monotonic_ns as i64 + (since as f64 * self.ns_per_tick) as i64;
        monotonic.wrapping_add(self.unix_minus_monotonic)
    }

    /// Seconds that `ticks` take.
    pub(super) fn seconds(&self, ticks: u64) -> f64 {
        ticks as f64 * self.ns_per_tick * 1e-9
    }

    /// Ticks in `nanoseconds`.
    pub(super) fn ticks(&self, nanoseconds: u64) -> u64 {
        (nanoseconds as f64 / self.ns_per_tick) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_time() {
        let mut clock = Clock::new(Sample { ticks: 1_000, monotonic_ns: 500, unix_ns: 1_000_000_500 });
        clock.compare(Sample { ticks: 3_001_000, monotonic_ns: 1_000_500, unix_ns: 1_001_000_500 });
        assert_eq!(clock.unix_ns(1_000), 1_000_000_500);
        assert_eq!(clock.unix_ns(3_001_000), 1_001_000_500);
        assert!((clock.seconds(3_000_000) - 0.001).abs() < 1e-12);
        assert_eq!(clock.ticks(1_000_000), 3_000_000);
    }
}
