//! Notices that steps have stopped, finds out why, and writes that to `probe.events`; it also does so when a client asks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_common::clock;
use probe_common::error::Result;
use probe_common::interval_env;
use probe_proto::env::PROBE_HANG_AFTER;
use probe_proto::v1::{HangAnswer, ProcessStacks, RankState, StacksAnswer, StacksCall};
use probe_store::ProcessIdentity;
use tokio_util::sync::CancellationToken;

use super::agent::Agent;
use super::events::{RunEvent, RunEvents, Severity};
use super::flight_recorder::{self, FlightRecording};
use super::hang_details::{FlightRecordings, details, recorded_by};
use super::registry::AgentRegistry;
use super::stacks::StackCollector;
use crate::eval::SnippetBroker;
use crate::hang_stalls::{GroupMember, oldest_pending};
use crate::hang_verdict::judge;
use crate::server::peer::AuditedCaller;

/// Default of how long steps may stop.
const AFTER: Duration = Duration::from_secs(30);
/// A stall must also last this many typical steps.
const TIMES: f64 = 10.0;
/// How long steps may stop where a client asks.
const ASKED: Duration = Duration::from_secs(3);
/// Before a step has a usual duration, ranks load and compile. So a collective may wait this many times as long as steps may stop.
const FIRST_STEPS: u32 = 10;
/// Pause between two looks.
const TICK: Duration = Duration::from_secs(1);
/// A rank that has recorded something within this time (s) is at work, if at no step: it validates, or saves.
const FRESH: f64 = 5.0;

/// Looks for hangs.
#[derive(Debug)]
pub(crate) struct HangWatch {
    pub registry: Arc<AgentRegistry>,
    pub stacks: Arc<StackCollector>,
    pub broker: Arc<SnippetBroker>,
    pub events: Arc<RunEvents>,
}

/// How long steps may stop; None: for ever.
///
/// # Errors
/// The variable's value is no duration.
pub(crate) fn stopped_after() -> Result<Option<Duration>> {
    interval_env::read(PROBE_HANG_AFTER, AFTER, Duration::ZERO, "30s, 5m")
}

/// An agent as it is now.
struct AgentSnapshot {
    agent: Arc<Agent>,
    identity: Arc<ProcessIdentity>,
    member: GroupMember,
    idle: Option<Duration>,
    /// How long its oldest operation has not finished.
    pending: Option<Duration>,
}

/// Whether training makes steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrainingProgress {
    /// Training makes steps, as far as is known.
    GoesOn,
    /// A collective has waited for long, and no step has a usual duration yet.
    WaitsBeforeSteps,
    /// A step takes much longer than usual.
    Stopped,
}

impl HangWatch {
    /// Says why no step is finished, or that steps go on.
    ///
    /// # Errors
    /// No agent is connected, or too many clients ask.
    pub(crate) async fn ask(&self, asked_by: &AuditedCaller) -> Result<HangAnswer> {
        let _turn = self.stacks.wait_for_turn(asked_by).await?;
        let progress = progress(&self.snapshots(), ASKED, ASKED);
        self.examine(progress, asked_by).await.map(|(answer, _)| answer)
    }

    /// Looks for hangs until the collector stops.
    pub(crate) async fn watch(self: Arc<Self>, after: Duration, stopping: CancellationToken) {
        let mut reported_hang: Option<ReportedHang> = None;
        let mut between: Option<Instant> = None;
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stopping.cancelled() => return,
            }
            let snapshots = self.snapshots();
            // Training waited for a snippet: the time to come to the next step and to report it begins anew.
            if self.broker.is_between_steps() {
                between = Some(Instant::now());
            }
            let waited = between.is_some_and(|between| between.elapsed() <= after);
            match &reported_hang {
                Some(before) if before.is_over() => {
                    let seconds = before.since.elapsed().as_secs_f64();
                    let what = if before.waits.is_empty() { "steps go on" } else { "all ranks have entered it" };
                    let text = format!("{what} after {seconds:.0} s");
                    self.events.record(RunEvent::new("hang", Severity::Info, text).at_step(before.step));
                    reported_hang = None;
                }
                Some(_) => {}
                None if waited => {}
                None => {
                    let progress = progress(&snapshots, after, after.saturating_mul(FIRST_STEPS));
                    if progress != TrainingProgress::GoesOn
                        && let Ok((answer, recorded)) = self.examine(progress, &AuditedCaller::collector("hang")).await
                        && is_worth_saying(&answer)
                    {
                        reported_hang = Some(ReportedHang::now(&snapshots, after, progress));
                        self.say(&answer, &recorded, &snapshots);
                    }
                }
            }
        }
    }

    fn snapshots(&self) -> Vec<AgentSnapshot> {
        let now = Instant::now();
        let mut all: Vec<AgentSnapshot> =
            self.registry.live().into_iter().map(|agent| AgentSnapshot::of(agent, now)).collect();
        all.sort_by_key(|snapshot| (snapshot.identity.rank, snapshot.identity.pid));
        all
    }

    async fn examine(
        &self,
        progress: TrainingProgress,
        asked_by: &AuditedCaller,
    ) -> Result<(HangAnswer, FlightRecordings)> {
        let stopped = progress != TrainingProgress::GoesOn;
        let (stacks, recorded) = tokio::join!(
            self.stacks.ask_without_turn(StacksCall::default(), asked_by),
            self.recorded(stopped, asked_by)
        );
        let stacks = stacks?;
        let now = clock::unix_ns();
        let members: Vec<_> = self.snapshots().into_iter().map(|snapshot| snapshot.placed(&stacks)).collect();
        let mut answer = judge(members.clone(), stopped, now);
        // Before the first steps a rank may do without collectives for long. That they differ between ranks is a hang even then.
        if progress == TrainingProgress::WaitsBeforeSteps
            && !["not entered", "different", "deadlock", "messages"].contains(&&*answer.why)
        {
            answer = judge(members, false, now);
        }
        for state in &mut answer.ranks {
            state.flight_recorder = recorded_by(&recorded, state).map(FlightRecording::line).unwrap_or_default();
        }
        Ok((HangAnswer { capture: stacks.capture, ..answer }, recorded))
    }

    /// Asks the Flight Recorders of the processes that have stopped; none where steps go on.
    async fn recorded(&self, stopped: bool, asked_by: &AuditedCaller) -> FlightRecordings {
        let snapshots = if stopped { self.snapshots() } else { Vec::new() };
        let asked = snapshots.into_iter().map(|snapshot| async move {
            let state = snapshot.member.state;
            let recorded = flight_recorder::ask(&self.broker, state.pid, asked_by).await?;
            Some(((state.host, state.pid), recorded))
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    fn say(&self, answer: &HangAnswer, recorded: &FlightRecordings, snapshots: &[AgentSnapshot]) {
        let severity = if answer.why == "outside" { Severity::Warning } else { Severity::Error };
        // By the count of the lowest rank, which is the count that ranks share.
        let step = answer.ranks.first().map(|rank| rank.step).unwrap_or_default();
        let mut event = RunEvent::new("hang", severity, answer.verdict.clone())
            .at_step(step)
            .with_details(&details(answer, recorded));
        // The hang of one rank has that rank in its row, so that a filter on rank finds it.
        let missing = answer.collective.as_ref().map_or(&[][..], |collective| &collective.missing);
        if let [one] = missing
            && let Some(odd) = snapshots.iter().find(|snapshot| snapshot.identity.rank == Some(*one))
        {
            event = event.of_process(&odd.identity).at_step(odd.member.state.step);
        }
        self.events.record(event);
    }
}

impl AgentSnapshot {
    fn of(agent: Arc<Agent>, now: Instant) -> Self {
        let state = agent.state();
        let idle = state.pace.idle(now);
        let record_ago = (state.last_record_ns > 0).then(|| {
            // By the agent's own clock, like the time of the record.
            let reported = now.saturating_duration_since(state.reported).as_secs_f64();
            clock::seconds(state.said_ns.saturating_sub(state.last_record_ns)).max(0.0) + reported
        });
        let rank_state = RankState {
            host: state.identity.host.to_string(),
            pid: u32::try_from(state.identity.pid).unwrap_or_default(),
            rank: state.identity.rank,
            step: state.step,
            step_ago_s: idle.map(|idle| idle.as_secs_f64()),
            step_s: state.usual_step(),
            record_ago_s: record_ago,
            validates: state.validates && record_ago.is_some_and(|ago| ago < FRESH),
            ..RankState::default()
        };
        let member = GroupMember { state: rank_state, groups: state.groups.clone() };
        let identity = Arc::clone(&state.identity);
        let pending = oldest_pending(&state.groups).map(|(_, operation)| {
            let until_report = u64::try_from(state.said_ns.saturating_sub(operation.unix_ns)).unwrap_or(0);
            Duration::from_nanos(until_report) + now.saturating_duration_since(state.reported)
        });
        drop(state);
        Self { agent, identity, member, idle, pending }
    }

    /// The member with the location of its main thread.
    fn placed(self, stacks: &StacksAnswer) -> GroupMember {
        let mut member = self.member;
        let same = |process: &&ProcessStacks| process.pid == member.state.pid && process.host == member.state.host;
        let Some(process) = stacks.processes.iter().find(same) else { return member };
        member.state.problem.clone_from(&process.problem);
        if let Some(main) = process.threads.iter().find(|thread| thread.main) {
            member.state.frame = main.frames.iter().find(|frame| frame.user_code).cloned();
            member.state.waits_for.clone_from(&main.waits_for);
            (member.state.gil, member.state.running, member.state.moving) = (main.gil, main.running, main.moving);
        }
        member
    }
}

/// Whether a process that has made steps has made none for longer than `after`, or a collective has not finished for longer than
/// `first` while no step has a usual duration. A process that validates is at work, and the others may wait for it.
fn progress(snapshots: &[AgentSnapshot], after: Duration, first: Duration) -> TrainingProgress {
    if snapshots.iter().any(|snapshot| snapshot.member.state.validates) {
        return TrainingProgress::GoesOn;
    }
    let has_stopped = |snapshot: &AgentSnapshot| {
        let usual = snapshot.member.state.step_s.unwrap_or(f64::INFINITY);
        snapshot.idle.is_some_and(|idle| idle > after && idle.as_secs_f64() > TIMES * usual)
    };
    if snapshots.iter().any(has_stopped) {
        return TrainingProgress::Stopped;
    }
    let has_no_steps = snapshots.iter().all(|snapshot| snapshot.member.state.step_s.is_none());
    let waits = snapshots.iter().any(|snapshot| snapshot.pending.is_some_and(|pending| pending > first));
    if has_no_steps && waits { TrainingProgress::WaitsBeforeSteps } else { TrainingProgress::GoesOn }
}

/// Whether an answer is a hang to report. It is none while a rank is at work: it validates while the others wait for it, or it
/// compiles.
fn is_worth_saying(answer: &HangAnswer) -> bool {
    let odd = |rank: &&RankState| match &answer.collective {
        Some(collective) if answer.why == "not entered" => {
            rank.rank.is_some_and(|rank| collective.missing.contains(&rank))
        }
        _ => true,
    };
    let at_work =
        |rank: &RankState| rank.waits_for == "torch.compile" || rank.record_ago_s.is_some_and(|ago| ago < FRESH);
    let mut odd = answer.ranks.iter().filter(odd).peekable();
    answer.why != "steps go on" && (answer.why == "different" || odd.peek().is_none() || !odd.any(at_work))
}

/// A hang that was reported.
struct ReportedHang {
    since: Instant,
    step: i64,
    /// The agents that had stopped, and at which step.
    stopped: Vec<(Arc<Agent>, i64)>,
    /// Before the first steps: the agents that waited in a collective, with its group and number.
    waits: Vec<(Arc<Agent>, String, i64)>,
}

impl ReportedHang {
    fn now(snapshots: &[AgentSnapshot], after: Duration, progress: TrainingProgress) -> Self {
        let is_long = |time: Option<Duration>| time.is_some_and(|time| time > after);
        let long = |snapshot: &&AgentSnapshot| is_long(snapshot.idle) || is_long(snapshot.pending);
        let stopped: Vec<_> = snapshots
            .iter()
            .filter(long)
            .map(|snapshot| (Arc::clone(&snapshot.agent), snapshot.member.state.step))
            .collect();
        let step = stopped.first().map(|(_, step)| *step).unwrap_or_default();
        let waiting = |snapshot: &AgentSnapshot| {
            let (group, operation) = oldest_pending(&snapshot.member.groups)?;
            Some((Arc::clone(&snapshot.agent), group.name.clone(), operation.seq))
        };
        let is_early = progress == TrainingProgress::WaitsBeforeSteps;
        let waits = if is_early { snapshots.iter().filter_map(waiting).collect() } else { Vec::new() };
        let longest = snapshots.iter().filter(|_| is_early).filter_map(|snapshot| snapshot.pending).max();
        let since = Instant::now().checked_sub(longest.unwrap_or(after)).unwrap_or_else(Instant::now);
        Self { since, step, stopped, waits }
    }

    /// Whether an agent that had stopped makes steps again, or has left the collective that it waited in.
    fn is_over(&self) -> bool {
        let has_left = |(agent, group, seq): &(Arc<Agent>, String, i64)| {
            oldest_pending(&agent.state().groups)
                .is_none_or(|(now, operation)| (&now.name, operation.seq) != (group, *seq))
        };
        self.stopped.iter().any(|(agent, step)| agent.state().step > *step) || self.waits.iter().any(has_left)
    }
}
