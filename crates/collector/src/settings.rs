//! The settings of the run (`probe ENDPOINT config KEY=VALUE`): sent to live agents, and to those that come later.
//!
//! A setting that must hold for all ranks together holds from one step on: a [`Plan`] names the step, far enough ahead that all
//! ranks hear of it before. Where a rank hears too late, all are given another plan, further ahead. Each rank is told its own
//! number of that step; a rank whose count of steps is not known to be that of the others (after an attach) begins at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use probe_common::error::{Error, Result};
use probe_proto::agent_connection::AgentConnection;
use probe_proto::config;
use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::{AgentConfig, ConfigAnswer, Configure, Plan, WatchAnswer, WatchCall};
use tokio::time::timeout;

use super::agent::{Agent, AgentState};
use super::registry::AgentRegistry;

/// How long agents are given to say that a setting is in force.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(2);
/// How far ahead of the ranks' steps a plan begins at first, and at most: in seconds of training, and in steps.
const FIRST_LEAD: f64 = 0.25;
const MAX_LEAD: f64 = 8.0;
const FIRST_MARGIN: i64 = 2;
/// How long detail in every step lasts at most where a client asks for it, however few steps were made.
const MAX_WATCH: Duration = Duration::from_secs(60);
/// Most steps for which a client may ask for detail in every step.
const MAX_WATCHED_STEPS: u32 = 1000;

/// Settings of the run.
#[derive(Debug, Default)]
pub(crate) struct SharedSettings(Mutex<RunSettings>);

#[derive(Debug)]
struct RunSettings {
    values: BTreeMap<String, String>,
    /// The newest plan; its number is 0 before there was one.
    plan: Plan,
    /// When the plan was made.
    made: Instant,
    lead: f64,
    watch: Option<DetailWatch>,
}

/// Detail in every step for a while, because a client has asked for it.
#[derive(Debug)]
struct DetailWatch {
    steps: i64,
    /// The step at which it is over; None until the plan that begins it is made.
    until: Option<i64>,
    is_planned: bool,
    deadline: Instant,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            plan: Plan { number: 0, from_step: 0, stride: 1, whole: true },
            made: Instant::now(),
            lead: FIRST_LEAD,
            watch: None,
        }
    }
}

impl RunSettings {
    /// Makes the next plan, for the agents that are connected.
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

/// What must be added to an agent's count of steps to get the one that all ranks share. None if that is not known, or if the agent is
/// not one of several ranks.
pub(crate) fn offset_among_ranks(state: &AgentState) -> Option<i64> {
    state.step_offset.filter(|_| has_other_ranks(state))
}

fn has_other_ranks(state: &AgentState) -> bool {
    state.identity.world_size.is_some_and(|ranks| ranks > 1)
}

/// A step that no rank among these agents has reached yet; 0, which means at once, if there are no ranks.
fn first_step(live: &[Arc<Agent>], lead: f64, after: i64) -> i64 {
    if !live.iter().any(|agent| has_other_ranks(&agent.state())) {
        return 0;
    }
    let now = Instant::now();
    let (mut furthest, mut rate) = (0.0_f64, 0.0_f64);
    for agent in live {
        let state = agent.state();
        // An agent whose count of steps is its own begins at once.
        let Some(offset) = offset_among_ranks(&state) else { continue };
        furthest = furthest.max(state.estimated_step(now) + offset as f64);
        rate = rate.max(state.steps_per_second);
    }
    let margin = ((rate * lead).ceil() as i64).max(FIRST_MARGIN);
    (furthest.ceil() as i64 + margin).max(after + 1)
}

impl SharedSettings {
    fn lock(&self) -> MutexGuard<'_, RunSettings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `tell` send a new agent all settings and the plan; what changes meanwhile waits, and is sent to that agent too.
    /// `offset`: what is added to its count of steps to get that of all.
    pub(crate) fn tell_all<T>(
        &self,
        offset: Option<i64>,
        tell: impl FnOnce(HashMap<String, String>, Option<Plan>) -> T,
    ) -> T {
        let state = self.lock();
        // A plan that must have begun does not fit the steps of ranks that were started anew.
        let offset = offset.filter(|_| state.made.elapsed().as_secs_f64() < 2.0 * MAX_LEAD);
        tell(state.values(), (state.plan.number > 0).then(|| by_own_count(state.plan, offset)))
    }

    /// Whether the collector captures steps by itself when they get slower.
    pub(crate) fn captures_when_slow(&self) -> bool {
        self.lock().values.get(config::CAPTURE_ON).is_some_and(|on| on == config::SLOW)
    }

    /// Records more in the next steps: modules, of which [`Self::wants_detail`] tells the governor, and operators.
    ///
    /// # Errors
    /// The call asks for too many steps.
    pub(crate) fn watch(&self, call: WatchCall, live: &[Arc<Agent>]) -> Result<WatchAnswer> {
        if call.detail_steps.max(call.operator_steps) > MAX_WATCHED_STEPS {
            return Err(Error::usage(format!("at most {MAX_WATCHED_STEPS} steps are watched"))
                .hint("probe ENDPOINT config detail=every-step lasts until it is changed"));
        }
        if call.detail_steps > 0 {
            let (steps, deadline) = (i64::from(call.detail_steps), Instant::now() + MAX_WATCH);
            self.lock().watch = Some(DetailWatch { steps, until: None, is_planned: false, deadline });
        }
        let watch = Configure { watch_operators: call.operator_steps, ..Configure::default() };
        let tells =
            |agent: &&Arc<Agent>| call.operator_steps == 0 || agent.send(Frame::Configure(watch.clone())).is_ok();
        let processes = live.iter().filter(tells).count();
        let automatic = live.iter().filter(|agent| {
            let detail =
                agent.state().settings.get(config::DETAIL).and_then(|detail| config::StepDetail::parse(detail));
            detail == Some(config::StepDetail::Auto)
        });
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Ok(WatchAnswer { processes: count(processes), automatic: count(automatic.count()) })
    }

    /// Whether a client has asked for detail in every step, where training is at `step`. Each look of the governor calls it.
    pub(crate) fn wants_detail(&self, step: i64) -> bool {
        let mut state = self.lock();
        let from_step = state.plan.from_step;
        let Some(watch) = &mut state.watch else { return false };
        if watch.is_planned {
            // The plan holds from its step on; for a single process as soon as can be.
            let steps = watch.steps;
            watch.until.get_or_insert_with(|| from_step.max(step) + steps);
        }
        watch.is_planned = true;
        if watch.until.is_some_and(|until| step >= until) || Instant::now() >= watch.deadline {
            state.watch = None;
        }
        state.watch.is_some()
    }

    /// Sets `stride` for agents with detail=auto, from a step on. Returns the stride before and the plan; None where the
    /// stride holds already.
    pub(crate) fn plan(&self, registry: &AgentRegistry, stride: u32, whole: bool) -> Option<(u32, Plan)> {
        let mut state = self.lock();
        let before = state.plan;
        if (before.stride, before.whole) == (stride, whole) {
            return None;
        }
        state.lead = FIRST_LEAD;
        // With the lock: an agent that was welcomed before has the plan before, and is among them.
        let live = registry.live();
        let plan = state.next(&live, stride, whole);
        tell(&live, HashMap::new(), plan);
        Some((before.stride, plan))
    }

    /// Sends the newest plan again, for a later step, if an agent received it too late.
    pub(crate) fn repeat_if_late(&self, registry: &AgentRegistry) {
        let mut state = self.lock();
        let live = registry.live();
        let number = state.plan.number;
        if live.iter().any(|agent| agent.state().plan == (number, true)) {
            state.lead = (state.lead * 2.0).min(MAX_LEAD);
            let Plan { stride, whole, .. } = state.plan;
            let plan = state.next(&live, stride, whole);
            tell(&live, state.values(), plan);
        }
    }

    /// Sets `values` on every agent, waits until the live ones confirm, and returns what is in force in each. An agent that did
    /// not confirm in time is shown with what it last reported.
    pub(crate) async fn set(&self, values: HashMap<String, String>, registry: &AgentRegistry) -> Result<ConfigAnswer> {
        for (key, value) in &values {
            let known = config::KEYS.iter().map(|key| format!("{}={}", key.name, key.values.join("|")));
            config::check(key, value).map_err(|what| {
                Error::usage(what).hint(format!("settings are {}", known.collect::<Vec<_>>().join(", ")))
            })?;
        }
        let notified = if values.is_empty() {
            registry.live()
        } else {
            let mut state = self.lock();
            let live = registry.live();
            // Remembered first: an agent that connects from now on gets the values in its Welcome.
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
                let in_force = notified.iter().all(|agent| {
                    let state = agent.state();
                    let holds = |(key, value): (&String, &String)| state.settings.get(key) == Some(value);
                    state.presence != AgentConnection::Live || values.iter().all(holds)
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

/// The plan by an agent's own count of steps, to which `offset` is added to get that of all. Where `offset` is not known, the
/// plan begins at once.
fn by_own_count(plan: Plan, offset: Option<i64>) -> Plan {
    let own = offset.map_or(0, |offset| plan.from_step.saturating_sub(offset).max(0));
    Plan { from_step: if plan.from_step == 0 { 0 } else { own }, ..plan }
}

/// Sends values and plan to the agents, and returns those that were sent them.
fn tell(live: &[Arc<Agent>], values: HashMap<String, String>, plan: Plan) -> Vec<Arc<Agent>> {
    let receivers = live.iter().filter(|agent| {
        let plan = by_own_count(plan, offset_among_ranks(&agent.state()));
        let configure = Configure { values: values.clone(), plan: Some(plan), ..Configure::default() };
        agent.send(Frame::Configure(configure)).is_ok()
    });
    receivers.cloned().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::tests::agents::agents;
    use probe_common::error::ErrorKind;

    #[test]
    fn detail_that_somebody_asks_for_ends_by_itself() {
        let settings = SharedSettings::default();
        assert!(!settings.wants_detail(100));
        settings.watch(WatchCall { detail_steps: 20, operator_steps: 0 }, &[]).unwrap();
        // The plan is made after the first look, and steps are counted from then on.
        let looks = [100, 103, 122, 123, 124].map(|step| settings.wants_detail(step));
        assert_eq!(looks, [true, true, true, false, false]);
        settings.watch(WatchCall { detail_steps: 20, operator_steps: 0 }, &[]).unwrap();
        settings.lock().watch.as_mut().unwrap().deadline = Instant::now();
        assert!(!settings.wants_detail(130), "a minute is over, whatever the steps");
        settings.watch(WatchCall { detail_steps: 0, operator_steps: 3 }, &[]).unwrap();
        assert!(!settings.wants_detail(130));
        let refused = settings.watch(WatchCall { detail_steps: 100_000, operator_steps: 0 }, &[]).unwrap_err();
        assert_eq!(
            (refused.kind(), refused.to_string().as_str()),
            (ErrorKind::Usage, "at most 1000 steps are watched")
        );
    }

    #[test]
    fn a_plan_is_told_by_each_ones_own_count_of_steps() {
        let plan = Plan { number: 1, from_step: 500, stride: 4, whole: true };
        let from = |plan: Plan, offset| by_own_count(plan, offset).from_step;
        assert_eq!((from(plan, Some(0)), from(plan, Some(480)), from(plan, None)), (500, 20, 0));
        let at_once = Plan { from_step: 0, ..plan };
        assert_eq!((from(at_once, Some(-5)), from(at_once, Some(0))), (0, 0));
    }

    #[test]
    fn a_plan_waits_for_ranks_and_not_for_other_processes() {
        let agent = |world_size, step| {
            let agent = agents(&[None], world_size).remove(0);
            agent.state().step = step;
            agent
        };
        let from = |live: &[Arc<Agent>]| first_step(live, 0.25, 0);
        let (learner, actor) = (agent(None, 50), agent(None, 1_000_000));
        assert_eq!(from(&[learner, Arc::clone(&actor)]), 0, "each by itself");
        let ranks = [agent(Some(2), 50), agent(Some(2), 60), actor];
        assert_eq!(from(&ranks), 60 + FIRST_MARGIN);
        let offsets = ranks.each_ref().map(|agent| offset_among_ranks(&agent.state()));
        assert_eq!(offsets, [Some(0), Some(0), None]);
    }

    #[test]
    fn an_agent_that_comes_later_hears_of_a_plan_that_is_under_way() {
        let settings = SharedSettings::default();
        let told = |offset| settings.tell_all(offset, |_, plan| plan);
        assert_eq!(told(Some(0)), None);
        settings.lock().plan = Plan { number: 1, from_step: 500, stride: 4, whole: true };
        let from = |offset| told(offset).map(|plan| plan.from_step);
        assert_eq!((from(Some(0)), from(None)), (Some(500), Some(0)));
        settings.lock().made -= Duration::from_secs(60);
        assert_eq!(from(Some(0)), Some(0), "it began long ago, and these are other steps");
    }
}
