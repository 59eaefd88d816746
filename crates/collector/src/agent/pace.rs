//! How long a process takes for its steps, and since when it has finished none.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Durations of steps that are remembered.
const MAX_DURATIONS: usize = 32;

/// The step times of one process, and how long it has finished none.
#[derive(Debug, Clone, Default)]
pub struct StepPace {
    /// When the process reported that it had made no step yet.
    began: Option<Instant>,
    /// When the number of steps last grew.
    grew: Option<Instant>,
    durations: VecDeque<f64>,
}

impl StepPace {
    /// Takes a report: the process has made `steps` steps, `more` of them since the report before. The first steps are timed
    /// from when it had made none, which is rather too long than too short. For a process that had made steps before its first
    /// report, nothing is known until it makes others.
    pub fn add_report(&mut self, steps: i64, more: i64, now: Instant) {
        if steps == 0 {
            self.began.get_or_insert(now);
        }
        if more <= 0 {
            return;
        }
        if let Some(before) = self.grew.replace(now).or(self.began) {
            let each = now.saturating_duration_since(before).as_secs_f64() / more as f64;
            if self.durations.len() == MAX_DURATIONS {
                self.durations.pop_front();
            }
            self.durations.push_back(each);
        }
    }

    /// How long ago the last step was finished; None before the first.
    pub fn idle(&self, now: Instant) -> Option<Duration> {
        self.grew.map(|grew| now.saturating_duration_since(grew))
    }

    /// The median duration of a step (s); None where it is not known.
    pub fn usual(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.durations.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_steps_and_not_of_reports() {
        let (mut pace, start) = (StepPace::default(), Instant::now());
        assert_eq!((pace.usual(), pace.idle(start)), (None, None));
        pace.add_report(7, 7, start);
        assert_eq!(pace.usual(), None, "how long the first seven took is not known");
        for report in 1..5 {
            pace.add_report(7 + 10, 10, start + Duration::from_millis(500) * report);
        }
        pace.add_report(47, 0, start + Duration::from_secs(10));
        assert_eq!(pace.usual(), Some(0.05));
        assert_eq!(pace.idle(start + Duration::from_secs(12)), Some(Duration::from_secs(10)));
        let mut quick = StepPace::default();
        quick.add_report(0, 0, start);
        quick.add_report(30, 30, start + Duration::from_secs(3));
        assert_eq!(quick.usual(), Some(0.1), "all its steps came with one report");
    }
}
