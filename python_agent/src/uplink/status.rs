//! The report that the collector gets every half second, and at once when an important part of it changes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use probe_proto::v1;

use crate::recording::clock::unix_ns;
use crate::recording::{self, config};
use crate::shared::{self, lock};
use probe_trace::row_buffer::RowBuffer;

/// Time between two reports.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// Steps per second are counted over about this long.
const WINDOW: Duration = Duration::from_secs(10);

/// Steps per second, from samples of the step counter.
#[derive(Debug, Default)]
pub struct StepRate {
    samples: VecDeque<(Instant, i64)>,
}

impl StepRate {
    /// Notes that `step` steps are finished; at most twice a second.
    pub fn add_sample(&mut self, now: Instant, step: i64) {
        if self.samples.back().is_some_and(|(last, _)| now.duration_since(*last) < INTERVAL) {
            return;
        }
        self.samples.push_back((now, step));
        while self.samples.get(1).is_some_and(|(second, _)| now.duration_since(*second) >= WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Steps per second over about the last ten seconds; 0 when not known.
    pub fn per_second(&self) -> f64 {
        match (self.samples.front(), self.samples.back()) {
            (Some((first, from)), Some((last, to))) if last > first => {
                (to - from) as f64 / last.duration_since(*first).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

/// Decides when a report is due.
#[derive(Debug, Default)]
pub struct StatusReporter {
    last: Option<(Instant, StatusFacts)>,
}

/// The parts of a report whose change is reported at once.
#[derive(Debug, Clone, PartialEq)]
struct StatusFacts {
    layers: BTreeMap<&'static str, String>,
    config: BTreeMap<String, String>,
    problem: String,
    plans: config::PlanState,
}

impl StatusFacts {
    fn now() -> Self {
        // Not within the expression below, in which the lock would be held while another one is taken.
        let problem = lock(&shared::PROBLEM).clone();
        Self {
            layers: recording::layers_now()
                .into_iter()
                .chain(recording::unit().map(|unit| ("steps", unit.to_owned())))
                .collect(),
            config: config::in_force(),
            problem,
            plans: config::plans(),
        }
    }
}

impl StatusReporter {
    /// Whether half a second has passed, or something has changed, since the last report.
    pub fn is_due(&self) -> bool {
        self.last.as_ref().is_none_or(|(when, facts)| when.elapsed() >= INTERVAL || *facts != StatusFacts::now())
    }

    /// Makes the report that is sent now.
    pub fn report(&mut self, pace: &StepRate, last_seq: u64, sink: &RowBuffer) -> v1::Status {
        let facts = StatusFacts::now();
        let status = facts.report(pace, last_seq, sink);
        self.last = Some((Instant::now(), facts));
        status
    }
}

/// The report as it would be now.
pub fn status_now(pace: &StepRate, last_seq: u64, sink: &RowBuffer) -> v1::Status {
    StatusFacts::now().report(pace, last_seq, sink)
}

impl StatusFacts {
    fn report(&self, pace: &StepRate, last_seq: u64, sink: &RowBuffer) -> v1::Status {
        let facts = self;
        let drops = sink.drops.iter().map(|((table, reason), rows)| v1::Drop {
            table: (*table).to_owned(),
            reason: (*reason).to_owned(),
            rows: *rows,
        });
        v1::Status {
            step: shared::STEP.load(Ordering::Relaxed),
            steps_per_second: pace.per_second(),
            last_seq,
            drops: drops.collect(),
            layers: facts.layers.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
            config: facts.config.clone().into_iter().collect::<HashMap<_, _>>(),
            problem: facts.problem.clone(),
            unix_ns: unix_ns(),
            recorded: sink.recorded().collect(),
            cost: recording::cost(),
            plan: facts.plans.number,
            plan_late: facts.plans.late,
            late_plans: facts.plans.late_plans,
            late: facts.plans.newest_late.clone(),
            groups: sink.groups.clone(),
            last_record_ns: sink.last_record_ns,
            validates: sink.validates,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_is_of_the_last_ten_seconds() {
        let mut pace = StepRate::default();
        let start = Instant::now();
        assert_eq!(pace.per_second(), 0.0);
        // Two steps a second for a minute, then one.
        for half in 0..240 {
            let step = if half < 120 { half } else { 120 + (half - 120) / 2 };
            pace.add_sample(start + INTERVAL * half as u32, step);
            if half == 119 {
                assert!((pace.per_second() - 2.0).abs() < 0.1, "{}", pace.per_second());
            }
        }
        assert!((pace.per_second() - 1.0).abs() < 0.1, "{}", pace.per_second());
        assert!(pace.samples.len() < 25);
    }
}
