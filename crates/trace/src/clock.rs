//! Ticks of the records' clock as points in time, in whole units, and those as seconds and as time of day.
//!
//! A point in time is rounded once, when its record is taken in, to a whole multiple of 2^-27 s (7.5 ns, less than taking the
//! record costs). All further times are differences or sums of whole numbers: the parts of a step sum to the step and a
//! module's own times to its total exactly, also as seconds, because floats hold such multiples without rounding. They are
//! short too: on disk they take less than half of what ticks in seconds would.

use std::collections::VecDeque;

use super::persist::persist;

#[cfg(test)]
mod tests;

/// The same moment on three clocks.
#[derive(Debug, Clone, Copy)]
pub struct ClockSample {
    /// Ticks of the records' clock.
    pub ticks: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`, which Python's `perf_counter` shows.
    pub monotonic_ns: u64,
    /// Nanoseconds since 1970, UTC.
    pub unix_ns: i64,
}

/// Units in a second.
pub(super) const SECOND: u64 = probe_proto::TIMES_PER_SECOND;

/// How far the clocks may drift apart before the time of day is set again, in nanoseconds. Below it, times stay on one line,
/// so that rows keep their order.
const DRIFT: i64 = 1_000_000;

/// Stretches of the line that are remembered, one a drain: half a minute, longer than a backward pass.
const STRETCHES: usize = 300;

/// The length of a tick is measured over the last minute. Over a longer time it would be the average over all corrections of
/// the system's clock; over a shorter one the error of reading two clocks after each other would count.
const SAMPLES: usize = 16;
const SAMPLE_NS: u64 = 4_000_000_000;

/// The time after which the line meets the system's clock, in units.
const CATCH_UP: i64 = SECOND as i64;

/// The kernel makes its clock faster or slower by a tenth at most. Where the two clocks differ by more than this share of the
/// time that has passed, and by more than reading them may take, one of them stood still: the machine slept, or the virtual
/// machine was stopped.
const MAX_TURNED: f64 = 0.125;
const MAX_APART_NS: f64 = 5_000_000.0;

/// Times of day that are remembered.
const DAYS: usize = 16;

/// Converts ticks to points in time. Points that were converted before do not change: the line goes on from there, and meets
/// the system's clock a second later, without a step.
#[derive(Debug)]
pub(super) struct TickClock {
    /// Samples between the oldest and newest of which a tick's length is measured.
    samples: VecDeque<ClockSample>,
    last: ClockSample,
    /// The length of a tick; None before the second sample.
    ns_per_tick: Option<f64>,
    /// Unix time minus monotonic time in nanoseconds, from a point in time on; the newest first.
    days: VecDeque<(u64, i64)>,
    /// The stretches of the line, the newest first.
    line: VecDeque<ClockStretch>,
    /// Newest ticks that became a point in time.
    newest: u64,
    /// The ticks at which one of the clocks stood still, until a later record comes.
    parted: Option<u64>,
}

/// A straight part of the line from `ticks` on, which are the point in time `at`, to the next stretch.
#[derive(Debug, Clone, Copy)]
struct ClockStretch {
    ticks: u64,
    at: u64,
    ns_per_tick: f64,
}

persist!(ClockSample { ticks, monotonic_ns, unix_ns });
persist!(TickClock { samples, last, ns_per_tick, days, line, newest, parted });
persist!(ClockStretch { ticks, at, ns_per_tick });

impl ClockSample {
    fn unix_minus_monotonic(self) -> i64 {
        self.unix_ns.wrapping_sub(self.monotonic_ns as i64)
    }

    /// The sample's point in time.
    fn at(self) -> i64 {
        (u128::from(self.monotonic_ns) * u128::from(SECOND) / 1_000_000_000) as i64
    }
}

fn units(ns: f64) -> f64 {
    ns * (SECOND as f64 * 1e-9)
}

impl TickClock {
    /// A clock whose ticks are nanoseconds until a second sample says otherwise.
    pub(super) fn new(first: ClockSample) -> Self {
        let at = first.at() as u64;
        Self {
            samples: VecDeque::from([first]),
            last: first,
            ns_per_tick: None,
            days: VecDeque::from([(at, first.unix_minus_monotonic())]),
            line: VecDeque::from([ClockStretch { ticks: first.ticks, at, ns_per_tick: 1.0 }]),
            newest: first.ticks,
            parted: None,
        }
    }

    /// Whether `sample` is too close to the first one to measure the length of a tick.
    pub(super) fn is_new_at(&self, sample: ClockSample) -> bool {
        self.ns_per_tick.is_none() && sample.monotonic_ns.saturating_sub(self.last.monotonic_ns) < 5_000_000
    }

    /// Takes another sample into account.
    pub(super) fn compare(&mut self, sample: ClockSample) {
        let ticks = sample.ticks.saturating_sub(self.last.ticks);
        let passed = sample.monotonic_ns.saturating_sub(self.last.monotonic_ns);
        if ticks > 0 && passed > 0 {
            let apart = |slope: f64| (passed as f64 - ticks as f64 * slope).abs();
            let known = self.ns_per_tick;
            match known.filter(|slope| apart(*slope) > MAX_APART_NS.max(ticks as f64 * slope * MAX_TURNED)) {
                Some(slope) => self.part(sample, passed, slope),
                None => self.steer(sample),
            }
            self.last = sample;
        }
        let difference = sample.unix_minus_monotonic();
        if self.days.front().is_none_or(|(_, known)| (difference - known).abs() > DRIFT) {
            self.days.truncate(DAYS - 1);
            // Records that have been taken in keep their time of day.
            self.days.push_front((self.at(self.newest) + 1, difference));
        }
    }

    /// Continues the line after one of the clocks stood still since the last sample. Up to there it does not change; from there
    /// on it is as far before `sample` as the system's clock has gone.
    fn part(&mut self, sample: ClockSample, passed: u64, slope: f64) {
        let from = sample.ticks.saturating_sub((passed as f64 / slope) as u64).max(self.last.ticks).max(self.newest);
        let passed_since = units(sample.ticks.saturating_sub(from) as f64 * slope).round() as i64;
        let at = u64::try_from(sample.at().saturating_sub(passed_since)).unwrap_or(0).max(self.at(self.newest));
        self.line.truncate(STRETCHES);
        self.line.push_front(ClockStretch { ticks: from, at, ns_per_tick: slope });
        self.samples = VecDeque::from([sample]);
        self.newest = from;
        self.parted = Some(from);
    }

    /// Bends the line, from the newest record on, towards the point in time of `sample`.
    fn steer(&mut self, sample: ClockSample) {
        let slope = self.measure(sample);
        let (from, at) = (self.newest, self.at(self.newest));
        let since = sample.ticks.wrapping_sub(from) as i64 as f64;
        let target = sample.at().saturating_sub(units(since * slope).round() as i64);
        let ahead = target.saturating_sub(at as i64);
        while self.line.front().is_some_and(|stretch| stretch.ticks >= from) {
            self.line.pop_front();
        }
        self.line.truncate(STRETCHES);
        if ahead == 0 {
            return self.line.push_front(ClockStretch { ticks: from, at, ns_per_tick: slope });
        }
        // However far the line is from the target, durations become an eighth longer or shorter at most.
        let length = ahead.saturating_abs().saturating_mul((1.0 / MAX_TURNED) as i64).max(CATCH_UP);
        let turned = (length.saturating_add(ahead)) as f64 / length as f64;
        let ticks = (length as f64 / units(slope)).round();
        self.line.push_front(ClockStretch { ticks: from, at, ns_per_tick: slope * turned });
        let reached = at.saturating_add_signed(units(ticks * slope * turned).round() as i64);
        self.line.push_front(ClockStretch {
            ticks: from.saturating_add(ticks as u64),
            at: reached,
            ns_per_tick: slope,
        });
    }

    /// The length of a tick in nanoseconds, over the last minute.
    fn measure(&mut self, sample: ClockSample) -> f64 {
        if self.samples.back().is_none_or(|last| sample.monotonic_ns.saturating_sub(last.monotonic_ns) >= SAMPLE_NS) {
            self.samples.push_back(sample);
        }
        while self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        let first = self.samples.front().copied().unwrap_or(self.last);
        let ticks = sample.ticks.saturating_sub(first.ticks);
        let passed = sample.monotonic_ns.saturating_sub(first.monotonic_ns);
        let slope = if ticks > 0 && passed > 0 { passed as f64 / ticks as f64 } else { self.slope() };
        self.ns_per_tick = Some(slope);
        slope
    }

    /// Takes in a record that was made at `ticks`, and returns its point in time.
    pub(super) fn place_record(&mut self, ticks: u64) -> u64 {
        self.newest = self.newest.max(ticks);
        self.at(ticks)
    }

    /// Whether one of the clocks stood still before `ticks`. True once for each time.
    pub(super) fn has_parted(&mut self, ticks: u64) -> bool {
        self.parted.take_if(|parted| *parted <= ticks).is_some()
    }

    /// The point in time at `ticks`.
    pub(super) fn at(&self, ticks: u64) -> u64 {
        let stretch = self.line.iter().find(|stretch| stretch.ticks <= ticks).or(self.line.back());
        let Some(ClockStretch { ticks: from, at, ns_per_tick }) = stretch else { return 0 };
        let passed = units(ticks.wrapping_sub(*from) as i64 as f64 * ns_per_tick);
        at.saturating_add_signed(passed.round() as i64)
    }

    /// Nanoseconds since 1970 at a point in time.
    pub(super) fn unix_ns(&self, since_boot: u64) -> i64 {
        let nanoseconds = (u128::from(since_boot) * 1_000_000_000 + u128::from(SECOND / 2)) / u128::from(SECOND);
        let day = self.days.iter().find(|(since, _)| *since <= since_boot).or(self.days.back());
        (nanoseconds as i64).wrapping_add(day.map_or(0, |(_, difference)| *difference))
    }

    fn slope(&self) -> f64 {
        self.ns_per_tick.unwrap_or(1.0)
    }

    /// Seconds that `ticks` take.
    pub(super) fn seconds_in(&self, ticks: u64) -> f64 {
        ticks as f64 * 1e-9 * self.slope()
    }

    /// Ticks in `nanoseconds`.
    pub(super) fn ticks(&self, nanoseconds: u64) -> u64 {
        (nanoseconds as f64 / self.slope()) as u64
    }
}

/// A difference between two points in time, in seconds: exact up to two years.
pub(super) fn seconds(units: u64) -> f64 {
    units as f64 / SECOND as f64
}
