//! How often processes are sampled: a plan, and a budget that may make it slower.

use std::time::{Duration, Instant};

/// Pause between two samples: in the first minute of steps, and later.
const FIRST: Duration = Duration::from_millis(100);
const FIRST_FOR: Duration = Duration::from_secs(60);
const LATER: Duration = Duration::from_secs(1);
/// Pause between two samples when steps have become slower, and for how long.
const SLOW: Duration = Duration::from_millis(50);
const SLOW_FOR: Duration = Duration::from_secs(2);

/// Processor seconds a second that sampling of all processes may take.
const SHARE: f64 = 0.005;
/// Processor seconds that are saved up at most, and with which the budget begins: more than the first minute of one process
/// takes, so that the plan holds for it.
const SAVED: f64 = 1.0;

/// Why a process is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleReason {
    Always,
    Slow,
    Asked,
}

impl SampleReason {
    /// The value of `python.stack_samples.kind`.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Slow => "slow",
            Self::Asked => "asked",
        }
    }
}

/// A while in which processes are sampled more often.
#[derive(Debug, Clone, Copy)]
pub(super) struct SamplingBurst {
    pub(super) kind: SampleReason,
    pub(super) until: Instant,
    pub(super) interval: Duration,
}

impl SamplingBurst {
    /// A burst because steps have become slower.
    pub(super) fn slow(now: Instant) -> Self {
        Self { kind: SampleReason::Slow, until: now + SLOW_FOR, interval: SLOW }
    }
}

/// Pause between two samples of a process; it depends on how long the process has been stepping.
pub(super) fn interval(stepping_since: Option<Instant>, now: Instant) -> Duration {
    match stepping_since {
        Some(since) if now.saturating_duration_since(since) < FIRST_FOR => FIRST,
        _ => LATER,
    }
}

/// The processor time that sampling may take.
#[derive(Debug)]
pub(super) struct SamplingBudget {
    /// Processor seconds that are left; negative after a sample that took more.
    left: f64,
    reckoned: Instant,
}

impl SamplingBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: SAVED, reckoned: now }
    }

    /// How long to wait until the next sample may be taken.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.reckoned).as_secs_f64();
        self.reckoned = now;
        self.left = (self.left + passed * SHARE).min(SAVED);
        Duration::from_secs_f64((-self.left / SHARE).max(0.0))
    }

    pub(super) fn spend(&mut self, processor_time: Duration) {
        self.left -= processor_time.as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples that are taken in `minutes` by the plan, where each takes `cost` of a processor.
    fn samples(minutes: u32, cost: Duration) -> u32 {
        let began = Instant::now();
        let mut budget = SamplingBudget::new(began);
        let (mut now, mut taken) = (began, 0);
        while now < began + Duration::from_secs(60) * minutes {
            let wait = budget.wait(now);
            if wait.is_zero() {
                budget.spend(cost);
                taken += 1;
                now += interval(Some(began), now);
            } else {
                now += wait;
            }
        }
        taken
    }

    #[test]
    fn sampling_keeps_to_its_plan_where_it_is_cheap_and_to_its_budget_where_it_is_not() {
        let cheap = Duration::from_millis(1);
        assert!((599..=601).contains(&samples(1, cheap)), "{}", samples(1, cheap));
        assert!((1138..=1141).contains(&samples(10, cheap)), "{}", samples(10, cheap));
        // 50 ms each: a second that was saved, and 3 ms more of each minute.
        let dear = Duration::from_millis(50);
        assert!((26..=27).contains(&samples(1, dear)), "{}", samples(1, dear));
        assert!((80..=81).contains(&samples(10, dear)), "{}", samples(10, dear));
    }

    #[test]
    fn nothing_is_saved_up_without_end() {
        let began = Instant::now();
        let mut budget = SamplingBudget::new(began);
        budget.wait(began + Duration::from_secs(86_400));
        budget.spend(Duration::from_secs(2));
        assert_eq!(budget.wait(began + Duration::from_secs(86_400)), Duration::from_secs(200));
    }

    #[test]
    fn a_process_is_sampled_once_a_second_before_its_first_step_and_after_its_first_minute() {
        let now = Instant::now();
        assert_eq!(interval(None, now), LATER);
        assert_eq!(interval(Some(now), now + Duration::from_secs(59)), FIRST);
        assert_eq!(interval(Some(now), now + Duration::from_secs(60)), LATER);
    }
}
