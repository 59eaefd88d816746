//! Which steps carry detail in a run with `detail=auto`: as few as the budget asks for, though one of eight; all of them while
//! steps are slow.
//!
//! Agents say what recording costs them and how long their steps take; this decides for all ranks at once, since a rank
//! that records when the others don't makes them wait, and rows of one step that only some ranks have compare badly.
//! [`Governor`] and [`SlowStepWatch`] only compute; [`run`] asks them twice a second and says what they decided.

use std::time::Duration;

use probe_proto::config::{self, StepDetail};
use probe_proto::v1::Cost;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use super::captures::SlowStepCaptures;
use super::events::{RunEvent, Severity};
use super::shared::CollectorState;
use super::slow_steps::{SlowStepWatch, StepTimeChange};
use super::stack_sampling::StackSampling;

/// Pause between two looks at the agents, which report as often.
const LOOK: Duration = Duration::from_millis(500);
/// Detail returns when recording with it would take at most this share of the budget.
const TO_SPARE: f64 = 0.7;
/// Checks in a row with a cost below [`TO_SPARE`] before detail returns.
const CALM_LOOKS: u32 = 6;
/// A step with detail comes at least this often, in seconds of training.
const MAX_GAP: f64 = 10.0;
/// Largest stride with the usual budget or more: one of the last ten steps has detail, and those are the steps that people ask
/// about.
const MAX_STRIDE: u32 = 8;
/// The usual budget, as a share of step time. A smaller one allows a larger stride.
const USUAL_BUDGET: f64 = 0.01;
/// Largest stride with a smaller budget.
const MAX_STRIDE_OF_SMALL_BUDGETS: u32 = 1024;
/// While recording every step is estimated to take less than this share of the budget, no step is left out for comparison. The
/// largest cost that was measured is 2.4 times the estimate.
const CHEAP: f64 = 0.4;
/// Decides in which steps detail is recorded: one of `stride`.
#[derive(Debug)]
pub(crate) struct Governor {
    stride: u32,
    calm: u32,
    /// Recording was once estimated to cost more than [`CHEAP`], and its cost is measured since.
    compares: bool,
}

/// What recording costs a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordingLoad {
    budget: f64,
    cost: Cost,
}

impl RecordingLoad {
    /// How much longer a step with detail takes, in seconds: the agent's estimate, within the bounds that were measured.
    fn detail(&self) -> f64 {
        let Cost { step_seconds, detail, low, high, .. } = self.cost;
        let measured = |ratio: f64| ((ratio - 1.0) * step_seconds).max(0.0);
        // An interval below 1 is noise: steps with detail are not faster.
        let most = high.filter(|high| *high > 1.0).map_or(f64::INFINITY, measured);
        detail.min(most).max(low.map_or(0.0, measured))
    }

    /// The cost of recording with detail in each `stride`-th step, as a multiple of the budget.
    fn share_of_budget(&self, stride: u32) -> f64 {
        let Cost { step_seconds, every_step, .. } = self.cost;
        // The cost of every step can't be reduced by the stride, and must not use up the budget of detail.
        let every_step = every_step.min(self.budget * step_seconds / 2.0);
        (every_step + self.detail() / f64::from(stride)) / (self.budget * step_seconds)
    }
}

impl Default for Governor {
    fn default() -> Self {
        Self { stride: 1, calm: 0, compares: false }
    }
}

impl Governor {
    /// Decides the stride for these processes, from what recording costs each.
    pub(crate) fn choose_stride(&mut self, loads: &[RecordingLoad]) -> u32 {
        let known = || loads.iter().filter(|load| load.cost.step_seconds > 0.0);
        let over = |stride| known().map(|load| load.share_of_budget(stride)).fold(0.0, f64::max);
        let slowest = known().map(|load| load.cost.step_seconds).fold(0.0, f64::max);
        if slowest == 0.0 {
            return self.stride;
        }
        self.compares |= over(1) > CHEAP;
        let budget = known().map(|load| load.budget).fold(USUAL_BUDGET, f64::min);
        let rarest = (f64::from(MAX_STRIDE) * USUAL_BUDGET / budget).min(f64::from(MAX_STRIDE_OF_SMALL_BUDGETS));
        let mut largest = 1;
        while f64::from(largest) < rarest && f64::from(largest * 2) * slowest <= MAX_GAP {
            largest *= 2;
        }
        let mut wanted = 1;
        while wanted < largest && over(wanted) > 1.0 {
            wanted *= 2;
        }
        let spare = self.stride > largest || self.stride > 1 && over(self.stride / 2) <= TO_SPARE;
        self.calm = if spare { self.calm + 1 } else { 0 };
        if wanted > self.stride {
            self.stride = wanted;
            self.calm = 0;
        } else if self.calm >= CALM_LOOKS {
            self.stride /= 2;
            self.calm = 0;
        }
        self.stride
    }
}

/// Decides about detail for as long as the collector lives.
pub(crate) async fn run(shared: &CollectorState, captures: &SlowStepCaptures, sampling: &StackSampling) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut governor, mut watch) = (Governor::default(), SlowStepWatch::default());
    loop {
        tokio::select! {
            _ = looks.tick() => {
                if check_agents(shared, &mut governor, &mut watch) {
                    captures.slower();
                    sampling.slower();
                }
            }
            () = shared.stopping.cancelled() => return,
        }
    }
}

/// Looks at the agents once and tells them what changes. Returns whether steps have become slower.
fn check_agents(shared: &CollectorState, governor: &mut Governor, watch: &mut SlowStepWatch) -> bool {
    let live = shared.registry.live();
    let (mut costs, mut loads, mut step) = (Vec::new(), Vec::new(), 0);
    let mut automatic = false;
    for agent in &live {
        let state = agent.state();
        let setting = |key: &str| state.settings.get(key).map(String::as_str);
        let is_automatic = setting(config::DETAIL).and_then(StepDetail::parse) == Some(StepDetail::Auto);
        automatic |= is_automatic;
        step = step.max(state.step);
        let Some(cost) = state.cost else { continue };
        costs.push(cost);
        if is_automatic {
            let budget = setting(config::OVERHEAD_BUDGET).and_then(config::budget).unwrap_or(0.01);
            loads.push(RecordingLoad { budget, cost });
        }
    }
    let change = watch.check(&costs);
    let every_step = shared.settings.wants_detail(step) || watch.captures();
    if automatic {
        // While steps are slow, the cost of recording is of no interest, and the durations say nothing about it.
        let stride = if every_step { governor.stride } else { governor.choose_stride(&loads) };
        plan(shared, stride, every_step, governor.compares, &loads, step);
    }
    if let Some(change) = change {
        shared.events.record(change.event(step, automatic));
    }
    shared.settings.repeat_if_late(&shared.registry);
    matches!(change, Some(StepTimeChange::Slower { .. }))
}

/// Tells the agents, if anything is to change. `reached` is the step that the furthest of them has reached.
fn plan(shared: &CollectorState, governed: u32, capture: bool, compares: bool, loads: &[RecordingLoad], reached: i64) {
    let stride = if capture { 1 } else { governed };
    let Some((before, plan)) = shared.settings.plan(&shared.registry, stride, capture || !compares) else { return };
    // A capture is its own event, which says why.
    if before == stride || capture {
        return;
    }
    let share = |stride| loads.iter().map(|load| load.share_of_budget(stride) * load.budget).fold(0.0, f64::max);
    let which = if stride == 1 { "every step".to_owned() } else { format!("one step of {stride}") };
    // A plan that holds at once says step 0.
    let (from_step, about) = if plan.from_step == 0 { (reached, "about ") } else { (plan.from_step, "") };
    let message = format!(
        "modules are recorded in {which} from {about}step {from_step} on: in every step that would take {:.1} % of the time",
        100.0 * share(1)
    );
    let details =
        json!({ "stride": stride, "stride_before": before, "share": share(stride), "share_every_step": share(1) });
    shared.events.record(RunEvent::new("detail", Severity::Info, message).at_step(from_step).with_details(&details));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(step: f64, every_step: f64, detail: f64) -> RecordingLoad {
        RecordingLoad { budget: 0.01, cost: Cost { step_seconds: step, every_step, detail, ..Cost::default() } }
    }

    fn measured(load: RecordingLoad, low: f64, high: f64) -> RecordingLoad {
        RecordingLoad { cost: Cost { low: Some(low), high: Some(high), ..load.cost }, ..load }
    }

    #[test]
    fn detail_is_thinned_at_once_and_comes_back_slowly() {
        let mut governor = Governor::default();
        assert_eq!(governor.choose_stride(&[]), 1, "nothing is known");
        assert_eq!(governor.choose_stride(&[load(0.0, 0.0, 1.0)]), 1);
        // 50 ms steps, a third of a percent: every step.
        assert_eq!(governor.choose_stride(&[load(0.05, 5e-6, 1.5e-4)]), 1);
        assert!(!governor.compares);
        // 3.4 ms steps, 4 %: one of 4 is 1 % and a bit for what every step costs.
        assert_eq!(governor.choose_stride(&[load(3.4e-3, 5e-6, 1.35e-4)]), 8);
        assert!(governor.compares);
        // Around the edge nothing changes: 0.9 of the budget at half the stride is not enough to come back.
        for share in [0.0356, 0.036, 0.0358] {
            for _ in 0..20 {
                assert_eq!(governor.choose_stride(&[load(3.4e-3, 0.0, share * 3.4e-3)]), 8);
            }
        }
        // Cheap enough, for three seconds, step by step back.
        let cheap = load(0.05, 0.0, 1e-4);
        let strides: Vec<u32> = (0..25).map(|_| governor.choose_stride(&[cheap])).collect();
        assert_eq!(strides[4..6], [8, 4]);
        assert_eq!((strides[11], strides[17], strides[24]), (2, 1, 1));
        assert!(governor.compares, "from then on");
        // An interruption starts the count anew.
        let mut governor = Governor { stride: 4, calm: CALM_LOOKS - 1, compares: true };
        assert_eq!((governor.choose_stride(&[load(0.05, 0.0, 1.5e-3)]), governor.calm), (4, 0));
    }

    #[test]
    fn one_rank_decides_for_all() {
        let mut governor = Governor::default();
        assert_eq!(governor.choose_stride(&[load(0.05, 0.0, 1e-4), load(0.05, 0.0, 3e-3), load(0.05, 0.0, 1e-4)]), 8);
    }

    #[test]
    fn what_was_measured_corrects_what_was_estimated() {
        let estimate = load(0.01, 0.0, 1e-4);
        assert_eq!(Governor::default().choose_stride(&[measured(estimate, 0.98, 1.1)]), 1, "they agree");
        assert_eq!(Governor::default().choose_stride(&[measured(estimate, 1.07, 1.1)]), 8, "it costs more");
        let estimate = load(0.01, 0.0, 1e-3);
        assert_eq!(Governor::default().choose_stride(&[measured(estimate, 0.99, 1.015)]), 2, "it costs less");
        assert_eq!(Governor::default().choose_stride(&[measured(estimate, 0.9, 0.95)]), 8, "noise");
    }

    #[test]
    fn a_step_with_detail_comes_every_ten_seconds() {
        assert_eq!(Governor::default().choose_stride(&[load(1.0, 0.0, 1.0)]), 8);
        assert_eq!(Governor::default().choose_stride(&[load(20.0, 0.0, 20.0)]), 1);
        assert_eq!(Governor::default().choose_stride(&[load(4.0, 0.0, 4.0)]), 2);
        // Steps have become slow: what is too rare now comes back.
        let mut governor = Governor { stride: 256, calm: 0, compares: true };
        let strides: Vec<u32> = (0..40).map(|_| governor.choose_stride(&[load(1.0, 0.0, 1.0)])).collect();
        assert_eq!(strides.last(), Some(&8));
    }

    #[test]
    fn one_of_eight_steps_has_detail_where_the_budget_is_not_smaller() {
        let dear = load(1e-4, 0.0, 1e-3);
        assert_eq!(Governor::default().choose_stride(&[dear]), 8);
        let with = |budget| RecordingLoad { budget, ..dear };
        assert_eq!(Governor::default().choose_stride(&[with(0.1)]), 8);
        assert_eq!(Governor::default().choose_stride(&[with(0.001), dear]), 128);
        assert_eq!(Governor::default().choose_stride(&[with(1e-6)]), 1024);
    }

    #[test]
    fn what_every_step_costs_leaves_room_for_detail() {
        // 2 % that can't be helped: detail gets the half of the budget that is kept for it.
        assert_eq!(Governor::default().choose_stride(&[load(1e-3, 2e-5, 2e-5)]), 4);
    }
}
