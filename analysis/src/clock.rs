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

/// How long a tick is, is measured over the last minute: over a longer time it would be the average over whatever the
/// system's clock was made to do since, over a shorter one what reading two clocks after each other is out by.
const SAMPLES: usize = 16;
const SAMPLE_NS: u64 = 4_000_000_000;

/// The line reaches where the system's clock is after this long, in units.
const CATCH_UP: i64 = SECOND as i64;

/// The kernel makes its clock go faster or slower by a tenth at most. Where the two differ by more of what has passed, and
/// by more than reading them may take, one of them stood still: the machine slept, or its virtual one was stopped.
const MOST_TURNED: f64 = 0.125;
const MOST_APART_NS: f64 = 5_000_000.0;

/// Times of day that are remembered.
const DAYS: usize = 16;

/// Converts ticks. What was converted before stays what it was: the line goes on from there, and meets the system's clock a
/// second later, without a step.
#[derive(Debug)]
pub(super) struct Clock {
    /// Between the oldest and the newest, a tick's length is measured.
    samples: VecDeque<Sample>,
    last: Sample,
    /// None before there were two samples.
    ns_per_tick: Option<f64>,
    /// Unix time minus monotonic time in nanoseconds, from a point in time on; the newest first.
    days: VecDeque<(u64, i64)>,
    /// The newest first.
    line: VecDeque<Stretch>,
    /// Newest ticks that became a point in time.
    newest: u64,
    /// Where one of the clocks stood still, until a record comes that was made later.
    parted: Option<u64>,
}

/// From `ticks` on, which are the point in time `at`, until the next one.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    ticks: u64,
    at: u64,
    ns_per_tick: f64,
}

keep!(Sample { ticks, monotonic_ns, unix_ns });
keep!(Clock { samples, last, ns_per_tick, days, line, newest, parted });
keep!(Stretch { ticks, at, ns_per_tick });

impl Sample {
    fn unix_minus_monotonic(self) -> i64 {
        self.unix_ns.wrapping_sub(self.monotonic_ns as i64)
    }

    /// Its point in time.
    fn at(self) -> i64 {
        (u128::from(self.monotonic_ns) * u128::from(SECOND) / 1_000_000_000) as i64
    }
}

fn units(ns: f64) -> f64 {
    ns * (SECOND as f64 * 1e-9)
}

impl Clock {
    /// A clock whose ticks are nanoseconds until a second sample says otherwise.
    pub(super) fn new(first: Sample) -> Self {
        let at = first.at() as u64;
        Self {
            samples: VecDeque::from([first]),
            last: first,
            ns_per_tick: None,
            days: VecDeque::from([(at, first.unix_minus_monotonic())]),
            line: VecDeque::from([Stretch { ticks: first.ticks, at, ns_per_tick: 1.0 }]),
            newest: first.ticks,
            parted: None,
        }
    }

    /// Whether `sample` is too close to the first one to tell how long a tick is.
    pub(super) fn is_new_at(&self, sample: Sample) -> bool {
        self.ns_per_tick.is_none() && sample.monotonic_ns.saturating_sub(self.last.monotonic_ns) < 5_000_000
    }

    /// Takes another sample into account.
    pub(super) fn compare(&mut self, sample: Sample) {
        let ticks = sample.ticks.saturating_sub(self.last.ticks);
        let passed = sample.monotonic_ns.saturating_sub(self.last.monotonic_ns);
        if ticks > 0 && passed > 0 {
            let apart = |slope: f64| (passed as f64 - ticks as f64 * slope).abs();
            let known = self.ns_per_tick;
            match known.filter(|slope| apart(*slope) > MOST_APART_NS.max(ticks as f64 * slope * MOST_TURNED)) {
                Some(slope) => self.part(sample, passed, slope),
                None => self.steer(sample),
            }
            self.last = sample;
        }
        let difference = sample.unix_minus_monotonic();
        if self.days.front().is_none_or(|(_, known)| (difference - known).abs() > DRIFT) {
            self.days.truncate(DAYS - 1);
            // What has been taken in keeps the day it had.
            self.days.push_front((self.at(self.newest) + 1, difference));
        }
    }

    /// One of the clocks stood still since the last sample. Until then the line goes on as it was; from there on it is as far
    /// before `sample` as the system's clock has gone.
    fn part(&mut self, sample: Sample, passed: u64, slope: f64) {
        let here = sample.ticks.saturating_sub((passed as f64 / slope) as u64).max(self.last.ticks).max(self.newest);
        let left = units(sample.ticks.saturating_sub(here) as f64 * slope).round() as i64;
        let at = u64::try_from(sample.at().saturating_sub(left)).unwrap_or(0).max(self.at(self.newest));
        self.line.truncate(STRETCHES);
        self.line.push_front(Stretch { ticks: here, at, ns_per_tick: slope });
        self.samples = VecDeque::from([sample]);
        self.newest = here;
        self.parted = Some(here);
    }

    /// From the newest record on, the line goes to where `sample` says that it has to be.
    fn steer(&mut self, sample: Sample) {
        let slope = self.measure(sample);
        let (from, at) = (self.newest, self.at(self.newest));
        let since = sample.ticks.wrapping_sub(from) as i64 as f64;
        let wanted = sample.at().saturating_sub(units(since * slope).round() as i64);
        let ahead = wanted.saturating_sub(at as i64);
        while self.line.front().is_some_and(|stretch| stretch.ticks >= from) {
            self.line.pop_front();
        }
        self.line.truncate(STRETCHES);
        if ahead == 0 {
            return self.line.push_front(Stretch { ticks: from, at, ns_per_tick: slope });
        }
        // However far it is, an eighth faster or slower is all that durations are made.
        let length = ahead.saturating_abs().saturating_mul((1.0 / MOST_TURNED) as i64).max(CATCH_UP);
        let turned = (length.saturating_add(ahead)) as f64 / length as f64;
        let there = (length as f64 / units(slope)).round();
        self.line.push_front(Stretch { ticks: from, at, ns_per_tick: slope * turned });
        let reached = at.saturating_add_signed(units(there * slope * turned).round() as i64);
        self.line.push_front(Stretch { ticks: from.saturating_add(there as u64), at: reached, ns_per_tick: slope });
    }

    /// How long a tick is, in nanoseconds, over the last minute.
    fn measure(&mut self, sample: Sample) -> f64 {
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

    /// The point in time of a record that was made at `ticks`.
    pub(super) fn take(&mut self, ticks: u64) -> u64 {
        self.newest = self.newest.max(ticks);
        self.at(ticks)
    }

    /// Whether one of the clocks stood still before `ticks`. Said once.
    pub(super) fn has_parted(&mut self, ticks: u64) -> bool {
        self.parted.take_if(|parted| *parted <= ticks).is_some()
    }

    /// The point in time at `ticks`.
    pub(super) fn at(&self, ticks: u64) -> u64 {
        let stretch = self.line.iter().find(|stretch| stretch.ticks <= ticks).or(self.line.back());
        let Some(Stretch { ticks: from, at, ns_per_tick }) = stretch else { return 0 };
        let passed = units(ticks.wrapping_sub(*from) as i64 as f64 * ns_per_tick);
        at.saturating_add_signed(passed.round() as i64)
    }

    /// Nanoseconds since 1970 at a point in time.
    pub(super) fn unix_ns(&self, at: u64) -> i64 {
        let nanoseconds = (u128::from(at) * 1_000_000_000 + u128::from(SECOND / 2)) / u128::from(SECOND);
        let day = self.days.iter().find(|(since, _)| *since <= at).or(self.days.back());
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
        let (begin, end) = (clock.take(4_000_000_000), clock.take(6_000_000_000));
        assert_eq!(end - begin, SECOND);
    }

    const TICKS_PER_SECOND: f64 = 2.4e9;

    /// A machine with both clocks, and a program that records something all the time.
    struct Machine {
        clock: Clock,
        /// Seconds by the counter, and by the system's clock.
        counter: f64,
        system: f64,
        /// Seconds by which the time of day is ahead.
        day: f64,
        newest: u64,
        noise: u64,
    }

    impl Machine {
        fn new() -> Self {
            let mut machine = Self {
                clock: Clock::new(Sample { ticks: 0, monotonic_ns: 0, unix_ns: 0 }),
                counter: 0.0,
                system: 0.0,
                day: 0.0,
                newest: 0,
                noise: 1,
            };
            machine.go(0.005, 1.0, 0.005);
            machine
        }

        fn ticks(&self) -> u64 {
            (self.counter * TICKS_PER_SECOND) as u64
        }

        /// So many seconds of the counter, in which the system's clock goes at `rate` of it. The clocks are read every
        /// `every` seconds, one a few hundred nanoseconds after the other; then what was
        /// recorded up to two milliseconds before is taken in.
        fn go(&mut self, seconds: f64, rate: f64, every: f64) {
            for _ in 0..(seconds / every).round() as u64 {
                self.counter += every;
                self.system += every * rate;
                self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let sample = Sample {
                    ticks: self.ticks(),
                    monotonic_ns: (self.system * 1e9) as u64 + (self.noise >> 33) % 300,
                    unix_ns: ((self.system + self.day) * 1e9) as i64,
                };
                self.clock.compare(sample);
                let recorded = self.clock.take(self.ticks() - 5_000_000);
                assert!(recorded >= self.newest, "time goes back");
                self.newest = recorded;
            }
        }

        /// The counter goes on and the system's clock does not; the time of day is right afterwards.
        fn sleep(&mut self, seconds: f64) {
            self.counter += seconds;
            self.day += seconds;
        }

        /// By how many seconds a record made now is out, and what a second that begins now is recorded as.
        fn error(&self) -> (f64, f64) {
            let (now, later) = (self.clock.at(self.ticks()), self.clock.at(self.ticks() + TICKS_PER_SECOND as u64));
            (seconds(now) - self.system, seconds(later) - seconds(now))
        }

        fn is_right(&self) {
            let (off, second) = self.error();
            assert!(off.abs() < 1e-5 && (second - 1.0).abs() < 1e-5, "{off} s off, a second is {second} s");
            let day = self.clock.unix_ns(self.clock.at(self.ticks())) as f64 * 1e-9 - self.system - self.day;
            assert!(day.abs() < 1.1e-3, "the time of day is {day} s off");
        }
    }

    #[test]
    fn a_night_asleep_is_not_in_any_second() {
        let mut machine = Machine::new();
        machine.go(600.0, 1.0, 0.1);
        let before = machine.clock.take(machine.ticks());
        let day_before = machine.clock.unix_ns(before);
        machine.sleep(28_800.0);
        machine.go(0.1, 1.0, 0.1);
        assert!(!machine.clock.has_parted(machine.ticks() - (28_000.0 * TICKS_PER_SECOND) as u64));
        assert!(machine.clock.has_parted(machine.ticks()) && !machine.clock.has_parted(machine.ticks()));
        machine.is_right();
        // What was recorded before is when it was.
        assert_eq!(machine.clock.unix_ns(before), day_before);
        machine.go(10.0, 1.0, 0.1);
        machine.is_right();
    }

    #[test]
    fn a_machine_that_was_stopped_for_a_while_is_right_at_once() {
        for stopped in [0.05, 0.3, 60.0] {
            let mut machine = Machine::new();
            machine.go(300.0, 1.0, 0.1);
            machine.sleep(stopped);
            machine.go(3.0, 1.0, 0.1);
            assert!(machine.clock.has_parted(machine.ticks()), "{stopped}");
            machine.is_right();
        }
    }

    #[test]
    fn a_clock_that_the_kernel_turns_is_followed_and_nothing_given_up() {
        let mut machine = Machine::new();
        machine.go(1000.0, 1.001, 0.1);
        let (off, second) = machine.error();
        assert!(off.abs() < 1e-5 && (second - 1.001).abs() < 1e-5, "{off}, {second}");
        machine.go(120.0, 1.0, 0.1);
        machine.is_right();
        // As fast as a kernel can.
        machine.go(2.0, 0.9, 0.1);
        machine.go(70.0, 1.0, 0.1);
        machine.is_right();
        assert!(!machine.clock.has_parted(u64::MAX));
    }

    #[test]
    fn a_day_does_not_make_it_slow_to_learn() {
        let mut machine = Machine::new();
        machine.go(86_400.0, 1.0, 4.0);
        machine.go(70.0, 1.0001, 0.1);
        let (off, second) = machine.error();
        assert!(off.abs() < 1e-5 && (second - 1.0001).abs() < 1e-5, "{off}, {second}");
    }

    proptest::proptest! {
        #[test]
        fn whatever_the_clocks_do_a_minute_of_calm_mends(
            events in proptest::collection::vec((0.1_f64..20.0, 0.9_f64..1.1, proptest::bool::weighted(0.2), 0.01_f64..1e5), 1..12)
        ) {
            let mut machine = Machine::new();
            for (seconds, rate, sleeps, asleep) in events {
                machine.go(seconds, rate, 0.1);
                if sleeps {
                    machine.sleep(asleep);
                }
            }
            machine.go(75.0, 1.0, 0.1);
            machine.is_right();
        }
    }
}
