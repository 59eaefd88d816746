//! Simulates both clocks of a machine.

use super::*;

#[test]
fn ticks_become_time() {
    let mut clock = TickClock::new(ClockSample { ticks: 1_000, monotonic_ns: 500, unix_ns: 1_000_000_500 });
    clock.compare(ClockSample { ticks: 3_001_000, monotonic_ns: 1_000_500, unix_ns: 1_001_000_500 });
    let (first, last) = (clock.place_record(1_000), clock.place_record(3_001_000));
    assert!((clock.unix_ns(first) - 1_000_000_500).abs() <= 4);
    assert!((clock.unix_ns(last) - 1_001_000_500).abs() <= 4);
    assert!((seconds(last - first) - 0.001).abs() < 8e-9);
    assert_eq!(clock.ticks(1_000_000), 3_000_000);
}

#[test]
fn a_better_slope_makes_no_step() {
    let mut clock = TickClock::new(ClockSample { ticks: 0, monotonic_ns: 0, unix_ns: 0 });
    clock.compare(ClockSample { ticks: 10_000, monotonic_ns: 5_100, unix_ns: 5_100 });
    let before = clock.place_record(9_000);
    clock.compare(ClockSample { ticks: 10_000_000_000, monotonic_ns: 5_000_000_000, unix_ns: 5_000_000_000 });
    assert_eq!(clock.place_record(9_000), before);
    let (begin, end) = (clock.place_record(4_000_000_000), clock.place_record(6_000_000_000));
    assert_eq!(end - begin, SECOND);
}

const TICKS_PER_SECOND: f64 = 2.4e9;

/// A machine with both clocks, and a program that records something all the time.
struct Machine {
    clock: TickClock,
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
            clock: TickClock::new(ClockSample { ticks: 0, monotonic_ns: 0, unix_ns: 0 }),
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

    /// Lets seconds of the counter pass, in which the system's clock goes at `rate` of it. The clocks are read every `every`
    /// seconds, one a few hundred nanoseconds after the other; then records up to two milliseconds before are taken in.
    fn go(&mut self, seconds: f64, rate: f64, every: f64) {
        for _ in 0..(seconds / every).round() as u64 {
            self.counter += every;
            self.system += every * rate;
            self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let sample = ClockSample {
                ticks: self.ticks(),
                monotonic_ns: (self.system * 1e9) as u64 + (self.noise >> 33) % 300,
                unix_ns: ((self.system + self.day) * 1e9) as i64,
            };
            self.clock.compare(sample);
            let recorded = self.clock.place_record(self.ticks() - 5_000_000);
            assert!(recorded >= self.newest, "time goes back");
            self.newest = recorded;
        }
    }

    /// Lets the counter go on and the system's clock not. The time of day is right afterwards.
    fn sleep(&mut self, seconds: f64) {
        self.counter += seconds;
        self.day += seconds;
    }

    /// The error of a record made now, in seconds, and the recorded length of a second that begins now.
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
    let before = machine.clock.place_record(machine.ticks());
    let day_before = machine.clock.unix_ns(before);
    machine.sleep(28_800.0);
    machine.go(0.1, 1.0, 0.1);
    assert!(!machine.clock.has_parted(machine.ticks() - (28_000.0 * TICKS_PER_SECOND) as u64));
    assert!(machine.clock.has_parted(machine.ticks()) && !machine.clock.has_parted(machine.ticks()));
    machine.is_right();
    // Times of earlier records do not change.
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
    // As fast as a kernel can make its clock.
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
