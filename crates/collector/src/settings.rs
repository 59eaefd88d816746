//! What has been set for the run (`probe ENDPOINT config KEY=VALUE`): told to live agents, and to those that come later.
//!
//! What holds for all ranks holds from one step on: a [`Plan`] names it, far enough ahead that all of them hear of it
//! before. Where one hears too late, all are given another, further ahead. Each is told its own number of that step; one
//! whose count of steps is not known to be the others' (after an attach) begins at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use probe_common::error::{Error, Result};
use probe_proto::config;
use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::{AgentConfig, ConfigAnswer, Configure, Plan};
use tokio::time::timeout;

use super::agent::{Agent, Presence};
use super::registry::Registry;

/// How long agents are given to say that a setting is in force.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(2);
/// How far ahead of the ranks' steps a plan begins at first, and at most: in seconds of training, and in steps.
const FIRST_LEAD: f64 = 0.25;
const MAX_LEAD: f64 = 8.0;
const FIRST_MARGIN: i64 = 2;

/// Settings of the run.
#[derive(Debug, Default)]
pub(crate) struct Settings(Mutex<State>);

#[derive(Debug)]
struct State {
    values: BTreeMap<String, String>,
    /// The newest; its number is 0 before there was one.
    plan: Plan,
    /// When it was made.
    made: Instant,
    lead: f64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            plan: Plan { number: 0, from_step: 0, stride: 1, whole: true },
            made: Instant::now(),
            lead: FIRST_LEAD,
        }
    }
}

impl State {
    /// The next plan, for the agents that are there.
    fn next(&mut self, live: &[Arc<Agent>], stride: u32, whole: bool) -> Plan {
        self.plan = Plan {
            number: self.plan.number + 1,
            from_step: first_step(live, self.lead, self.plan.from_step),
            stride,
            whole,
        };
        self.made = Instant::now();
        self.plan
    }

    fn values(&self) -> HashMap<String, String> {
        self.values.clone().into_iter().collect()
    }
}

/// A step that all of these have before them; 0, which is as soon as can be, where there is only one and no other is
/// to come.
fn first_step(live: &[Arc<Agent>], lead: f64, after: i64) -> i64 {
    let has_others = |agent: &Arc<Agent>| agent.state().identity.world_size.is_some_and(|ranks| ranks > 1);
    if live.len() < 2 && !live.iter().any(has_others) {
        return 0;
    }
    let now = Instant::now();
    let (mut furthest, mut rate) = (0.0_f64, 0.0_f64);
    for agent in live {
        let state = agent.state();
        // One that counts from elsewhere begins at once.
        let Some(offset) = state.step_offset else { continue };
        furthest = furthest.max(state.estimated_step(now) + offset as f64);
        rate = rate.max(state.steps_per_second);
    }
    let margin = ((rate * lead).ceil() as i64).max(FIRST_MARGIN);
    (furthest.ceil() as i64 + margin).max(after + 1)
}

impl Settings {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that has been set, for an agent that comes and whose count of steps is that of all with `offset` less.
    pub(crate) fn all(&self, offset: Option<i64>) -> (HashMap<String, String>, Option<Plan>) {
        let state = self.lock();
        // A plan that must have begun is no plan for the steps of ranks that were started anew.
        let offset = offset.filter(|_| state.made.elapsed().as_secs_f64() < 2.0 * MAX_LEAD);
        (state.values(), (state.plan.number > 0).then(|| by_own_count(state.plan, offset)))
    }

    /// Whether the collector captures steps by itself when they get slower.
    pub(crate) fn captures_when_slow(&self) -> bool {
        self.lock().values.get(config::CAPTURE_ON).is_some_and(|on| on == config::SLOW)
    }

    /// Has `stride` hold for agents with detail=auto from a step on; None where it does already. Returns the stride
    /// before, and the plan.
    pub(crate) fn plan(&self, live: &[Arc<Agent>], stride: u32, whole: bool) -> Option<(u32, Plan)> {
        let mut state = self.lock();
        let before = state.plan;
        if (before.stride, before.whole) == (stride, whole) {
            return None;
        }
        state.lead = FIRST_LEAD;
        let plan = state.next(live, stride, whole);
        tell(live, HashMap::new(), plan);
        Some((before.stride, plan))
    }

    /// Gives out the newest plan anew, for a later step, if one of these heard of it too late.
    pub(crate) fn repeat_if_late(&self, live: &[Arc<Agent>]) {
        let mut state = self.lock();
        let number = state.plan.number;
        if live.iter().any(|agent| agent.state().plan == (number, true)) {
            state.lead = (state.lead * 2.0).min(MAX_LEAD);
            let Plan { stride, whole, .. } = state.plan;
            let plan = state.next(live, stride, whole);
            tell(live, state.values(), plan);
        }
    }

    /// Sets `values` on every agent, waits until those that are live say so, and says what is in force in each. An
    /// agent that did not say so in time is shown with what it last said.
    pub(crate) async fn set(&self, values: HashMap<String, String>, registry: &Registry) -> Result<ConfigAnswer> {
        for (key, value) in &values {
            let known = config::KEYS.iter().map(|key| format!("{}={}", key.name, key.values.join("|")));
            config::check(key, value).map_err(|what| {
                Error::usage(what).hint(format!("settings are {}", known.collect::<Vec<_>>().join(", ")))
            })?;
        }
        let told = if values.is_empty() {
            registry.live()
        } else {
            let mut state = self.lock();
            let live = registry.live();
            // Remembered first: an agent that connects from now on hears it in its Welcome.
            state.values.extend(values.clone());
            state.lead = FIRST_LEAD;
            let Plan { stride, whole, .. } = state.plan;
            let plan = state.next(&live, stride, whole);
            tell(&live, values.clone(), plan)
        };
        let mut changes = registry.changes();
        let everywhere = async {
            loop {
                changes.mark_unchanged();
                let in_force = told.iter().all(|agent| {
                    let state = agent.state();
                    let holds = |(key, value): (&String, &String)| state.settings.get(key) == Some(value);
                    state.presence != Presence::Live || values.iter().all(holds)
                });
                if in_force || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(CONFIRMATION_TIMEOUT, everywhere).await;
        let mut agents: Vec<AgentConfig> = registry
            .live()
            .iter()
            .map(|agent| {
                let state = agent.state();
                let pid = u32::try_from(state.identity.pid).unwrap_or_default();
                AgentConfig { rank: state.identity.rank, pid, values: state.settings.clone().into_iter().collect() }
            })
            .collect();
        agents.sort_by_key(|agent| (agent.rank, agent.pid));
        Ok(ConfigAnswer { agents })
    }
}

/// The plan by an agent's own count of steps, to which `offset` is added to get that of all; at once where that is not known.
fn by_own_count(plan: Plan, offset: Option<i64>) -> Plan {
    let own = offset.map_or(0, |offset| plan.from_step.saturating_sub(offset).max(0));
    Plan { from_step: if plan.from_step == 0 { 0 } else { own }, ..plan }
}

/// Sends it to those that take it, and says who they are.
fn tell(live: &[Arc<Agent>], values: HashMap<String, String>, plan: Plan) -> Vec<Arc<Agent>> {
    let told = live.iter().filter(|agent| {
        let plan = by_own_count(plan, agent.state().step_offset);
        agent.send(Frame::Configure(Configure { values: values.clone(), plan: Some(plan) })).is_ok()
    });
    told.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_told_by_each_ones_own_count_of_steps() {
        let plan = Plan { number: 1, from_step: 500, stride: 4, whole: true };
        let from = |plan: Plan, offset| by_own_count(plan, offset).from_step;
        assert_eq!((from(plan, Some(0)), from(plan, Some(480)), from(plan, None)), (500, 20, 0));
        let at_once = Plan { from_step: 0, ..plan };
        assert_eq!((from(at_once, Some(-5)), from(at_once, Some(0))), (0, 0));
    }

    #[test]
    fn an_agent_that_comes_later_hears_of_a_plan_that_is_under_way() {
        let settings = Settings::default();
        assert_eq!(settings.all(Some(0)).1, None);
        settings.lock().plan = Plan { number: 1, from_step: 500, stride: 4, whole: true };
        let from = |offset| settings.all(offset).1.map(|plan| plan.from_step);
        assert_eq!((from(Some(0)), from(None)), (Some(500), Some(0)));
        settings.lock().made -= Duration::from_secs(60);
        assert_eq!(from(Some(0)), Some(0), "it began long ago, and these are other steps");
    }
}
