//! Whether steps have become slow: their durations against the run's own baseline.

use probe_proto::v1::Cost;
use serde_json::json;

use super::events::{RunEvent, Severity};

/// Steps are slow when the last second's median is `SLOW` times the baseline, until it is no more than `NORMAL` times.
const SLOW: f64 = 1.5;
const NORMAL: f64 = 1.2;
/// During a slow period, every step has detail for at most this many checks (half a minute).
const CAPTURE_LOOKS: u32 = 60;

/// Watches whether steps are slow.
#[derive(Debug, Default)]
pub(crate) struct SlowStepWatch {
    slow: Option<SlowPeriod>,
}

#[derive(Debug, Clone, Copy)]
struct SlowPeriod {
    baseline: f64,
    /// How long steps took when slowness was last reported (s).
    reported: f64,
    looks: u32,
}

/// A change of the durations of steps; values are medians, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StepTimeChange {
    /// Steps take longer than the run's own baseline.
    Slower { recent: f64, baseline: f64 },
    /// Steps still take longer, and have been captured long enough.
    Captured { recent: f64, baseline: f64 },
    /// Steps take as long as before they became slow.
    Again { recent: f64, baseline: f64 },
    /// Steps have been slow for so long that their duration is the baseline now.
    Settled { recent: f64, baseline: f64 },
}

impl SlowStepWatch {
    /// Whether detail is wanted in every step.
    pub(crate) fn captures(&self) -> bool {
        self.slow.is_some_and(|slow| slow.looks < CAPTURE_LOOKS)
    }

    /// Looks at the durations of all processes, of which the one that has slowed down the most counts.
    pub(crate) fn check(&mut self, costs: &[Cost]) -> Option<StepTimeChange> {
        let known = costs.iter().filter(|cost| cost.recent > 0.0 && cost.baseline > 0.0);
        let worst = known.max_by(|a, b| (a.recent / a.baseline).total_cmp(&(b.recent / b.baseline)))?;
        let (recent, now) = (worst.recent, worst.baseline);
        let Some(slow) = &mut self.slow else {
            if recent > SLOW * now {
                self.slow = Some(SlowPeriod { baseline: now, reported: recent, looks: 0 });
                return Some(StepTimeChange::Slower { recent, baseline: now });
            }
            return None;
        };
        slow.looks = slow.looks.saturating_add(1);
        let baseline = slow.baseline;
        if recent <= NORMAL * baseline {
            self.slow = None;
            return Some(StepTimeChange::Again { recent, baseline });
        }
        if recent <= NORMAL * now {
            self.slow = None;
            return Some(StepTimeChange::Settled { recent, baseline });
        }
        if recent > SLOW * slow.reported {
            // Steps have become slower once more, for another reason: worth another capture.
            *slow = SlowPeriod { baseline, reported: recent, looks: 0 };
            return Some(StepTimeChange::Slower { recent, baseline });
        }
        (slow.looks == CAPTURE_LOOKS).then_some(StepTimeChange::Captured { recent, baseline })
    }
}

impl StepTimeChange {
    /// The event that reports the change. `automatic`: whether every step is recorded in detail because of it.
    pub(crate) fn event(self, step: i64, automatic: bool) -> RunEvent {
        let event = |kind, severity, message, recent: f64, baseline: f64| {
            let details = json!({ "recent": recent, "baseline": baseline });
            RunEvent::new(kind, severity, message).at_step(step).with_details(&details)
        };
        let took = |seconds: f64| match seconds {
            s if s < 0.1 => format!("{:.3} ms", 1e3 * s),
            s => format!("{s:.3} s"),
        };
        match self {
            StepTimeChange::Slower { recent, baseline } => {
                let (recent_words, baseline_words) = (took(recent), took(baseline));
                let detail = if automatic { "; every step is recorded in detail meanwhile" } else { "" };
                let message = format!("steps take {recent_words} instead of {baseline_words} (medians){detail}");
                event("slow", Severity::Warning, message, recent, baseline)
            }
            StepTimeChange::Captured { recent, baseline } => {
                let message =
                    format!("steps still take {}; they have been recorded in detail for long enough", took(recent));
                event("capture", Severity::Info, message, recent, baseline)
            }
            StepTimeChange::Again { recent, baseline } => {
                let message = format!("steps take {} again", took(recent));
                event("slow", Severity::Info, message, recent, baseline)
            }
            StepTimeChange::Settled { recent, baseline } => {
                let message = format!("steps take {} by now, which was {} before", took(recent), took(baseline));
                event("slow", Severity::Info, message, recent, baseline)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(recent: f64, baseline: f64) -> Cost {
        Cost { recent, baseline, ..Cost::default() }
    }

    #[test]
    fn slow_steps_are_captured_until_they_are_fast_again() {
        let mut watch = SlowStepWatch::default();
        assert_eq!(watch.check(&[]), None);
        assert_eq!(watch.check(&[pace(0.0, 0.0), pace(0.14, 0.1)]), None);
        assert!(!watch.captures());
        let slower = watch.check(&[pace(0.1, 0.1), pace(0.2, 0.1)]);
        assert_eq!(slower, Some(StepTimeChange::Slower { recent: 0.2, baseline: 0.1 }));
        assert!(watch.captures());
        assert_eq!(watch.check(&[pace(0.2, 0.1)]), None, "once");
        assert_eq!(
            watch.check(&[pace(0.4, 0.1)]),
            Some(StepTimeChange::Slower { recent: 0.4, baseline: 0.1 }),
            "slower still"
        );
        assert_eq!(watch.check(&[pace(0.13, 0.1)]), None, "not yet");
        assert_eq!(watch.check(&[pace(0.11, 0.1)]), Some(StepTimeChange::Again { recent: 0.11, baseline: 0.1 }));
        assert!(!watch.captures());
    }

    #[test]
    fn a_capture_ends_and_so_does_a_slow_time_that_stays() {
        let mut watch = SlowStepWatch::default();
        watch.check(&[pace(0.2, 0.1)]);
        let changes: Vec<StepTimeChange> = (0..100).filter_map(|_| watch.check(&[pace(0.2, 0.1)])).collect();
        assert_eq!(changes, [StepTimeChange::Captured { recent: 0.2, baseline: 0.1 }]);
        assert!(!watch.captures());
        // The baseline of the agents has moved on.
        assert_eq!(watch.check(&[pace(0.2, 0.19)]), Some(StepTimeChange::Settled { recent: 0.2, baseline: 0.1 }));
        assert_eq!(watch.check(&[pace(0.2, 0.2)]), None);
    }
}
