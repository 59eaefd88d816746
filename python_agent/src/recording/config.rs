//! The settings that can be changed while training runs, and those in force.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use probe_proto::config::{self, Layers, StepDetail};
use probe_proto::v1::{LatePlan, Plan};

use super::overhead;
use super::policy::{self, RecordingPolicy};
use crate::shared::{STEP, lock};

/// Late plans that are remembered.
const MAX_LATE: usize = 8;

/// The settings and plans that were received.
#[derive(Debug)]
pub(super) struct ReceivedSettings {
    /// Key to value; a missing key has its default.
    values: BTreeMap<String, String>,
    /// The newest plan of a collector.
    plan: Plan,
    /// Whether the newest plan's step had begun when the plan came.
    late: bool,
    /// How many plans were late.
    late_plans: u64,
    /// The newest late plans, oldest first.
    newest_late: VecDeque<LatePlan>,
}

impl ReceivedSettings {
    /// None yet, and the plan that holds before a collector sends one.
    const fn new() -> Self {
        Self {
            values: BTreeMap::new(),
            plan: Plan { number: 0, from_step: 0, stride: 1, whole: true },
            late: false,
            late_plans: 0,
            newest_late: VecDeque::new(),
        }
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// What the settings and the plan together say of steps and layers.
    fn policy(&self) -> RecordingPolicy {
        let layers = self.value(config::LAYERS).and_then(Layers::parse).unwrap_or(Layers::ALL);
        let (stride, compare) = match self.value(config::DETAIL).and_then(StepDetail::parse).unwrap_or(StepDetail::Auto)
        {
            StepDetail::EveryStep => (1, false),
            StepDetail::Off => (0, false),
            StepDetail::Every(stride) => (u16::try_from(stride).unwrap_or(u16::MAX), false),
            StepDetail::Auto => (u16::try_from(self.plan.stride).unwrap_or(u16::MAX), !self.plan.whole),
        };
        RecordingPolicy { stride, layers, compare }
    }
}

pub(super) static SET: Mutex<ReceivedSettings> = Mutex::new(ReceivedSettings::new());

/// Checks all of `values`, then applies them, from the plan's step on where there is one; the error says what is
/// allowed, and then nothing was applied.
pub fn apply<'a>(
    values: impl IntoIterator<Item = (&'a String, &'a String)> + Clone,
    plan: Option<&Plan>,
) -> Result<(), String> {
    for (key, value) in values.clone() {
        config::check(key, value)?;
    }
    let mut set = lock(&SET);
    set.values.extend(values.into_iter().map(|(key, value)| (key.clone(), value.clone())));
    if let Some(plan) = plan {
        set.plan = *plan;
    }
    if let Some(share) = set.value(config::OVERHEAD_BUDGET).and_then(config::budget) {
        overhead::set_budget(share);
    }
    let wanted = set.policy();
    if let Some(plan) = plan {
        // Step 0 means as soon as possible, so that such a plan is never late.
        set.late = wanted != policy::newest() && !policy::set_from(wanted, plan.from_step) && plan.from_step > 0;
        if set.late {
            let now = STEP.load(Ordering::SeqCst);
            let late = LatePlan { from_step: plan.from_step.min(now), until_step: plan.from_step.max(now) };
            set.late_plans += 1;
            set.newest_late.push_back(late);
            if set.newest_late.len() > MAX_LATE {
                set.newest_late.pop_front();
            }
        }
    } else if wanted != policy::newest() {
        policy::set(wanted);
    }
    Ok(())
}

/// Keeps the settings in a forked child that becomes an agent, and forgets the plans, which are about the parent's steps.
pub(super) fn begin_anew() {
    let mut set = lock(&SET);
    let values = std::mem::take(&mut set.values);
    *set = ReceivedSettings { values, ..ReceivedSettings::new() };
    policy::set(set.policy());
}

/// Every key with its value in force, or with the value that will be in force from a step on.
pub fn in_force() -> BTreeMap<String, String> {
    let set = lock(&SET);
    let value = |key: &config::ConfigKey| set.values.get(key.name).cloned().unwrap_or_else(|| key.values[0].to_owned());
    config::KEYS.iter().map(|key| (key.name.to_owned(), value(key))).collect()
}

/// State of the collector's plans.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanState {
    /// Number of the newest plan that came.
    pub number: u64,
    /// Whether the newest plan came late.
    pub late: bool,
    /// How many plans came late.
    pub late_plans: u64,
    /// The newest late plans, oldest first.
    pub newest_late: Vec<LatePlan>,
}

/// State of the collector's plans so far.
pub fn plans() -> PlanState {
    let set = lock(&SET);
    let newest_late = set.newest_late.iter().copied().collect();
    PlanState { number: set.plan.number, late: set.late, late_plans: set.late_plans, newest_late }
}
