//! Runs a snippet between two steps: waits for its turn, collects the ranks, agrees on a step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_common::error::Error;
use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::{self, At, Outcome};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{sleep_until, timeout, timeout_at};

use super::agreement::{BoundaryAgreement, NextRound};
use super::{AgentAnswer, SnippetRun, StopReason};
use crate::eval::feed::ClientGone;
use crate::eval::group;

/// Longest wait for ranks that are not connected yet.
const RANKS_TIMEOUT: Duration = Duration::from_secs(5);
/// How far ahead of a rank's steps its boundary is chosen, so that all have been told when they come there (seconds of
/// training), and in steps at least.
const LEAD: f64 = 0.25;
const MARGIN: i64 = 2;
/// Initial wait of the first rank at a boundary, in steps, and the bounds of that wait in seconds.
const STEPS_OF_PATIENCE: f64 = 4.0;
const MIN_PATIENCE: f64 = 0.1;
const MAX_PATIENCE: f64 = 5.0;
/// Longest wait for the reason why no rank can run the snippet.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Stops a snippet of which nothing has run: the error, and what to do.
fn refused(error: &Error) -> StopReason {
    StopReason::Refused(Outcome::Refused, error.to_string(), error.hint_text().unwrap_or_default().into())
}

/// A rank cannot run the snippet: which, and what it said.
struct RankFailure(String);

impl SnippetRun {
    /// Runs the snippet between two steps, on all ranks between the same two: each stops at a boundary and says where it is,
    /// and none runs the snippet before all wait at the same boundary.
    pub(super) async fn between_steps(&mut self, why: String) -> Result<(), StopReason> {
        self.turn = Some(self.wait_for_turn().await?);
        self.wait_for_ranks().await?;
        let everyone: Vec<usize> = (0..self.group.targets.len()).collect();
        self.begin_attempt();
        if !self.group.together {
            self.placed(At::Step, why, -1, |_| true);
            for index in everyone {
                self.arm(index, -1);
            }
            return self.collect().await;
        }
        self.group.check_can_meet().map_err(|error| refused(&error))?;
        for (index, step) in self.boundaries().into_iter().enumerate() {
            self.arm(index, step);
        }
        match self.meet().await? {
            Ok(step) => {
                self.placed(At::Step, why, step, |_| true);
                self.tell(|id| Frame::EvalGo(v1::EvalGo { id }));
            }
            Err(RankFailure(why)) => return self.give_up(&why).await,
        }
        self.collect().await
    }

    /// Ends the snippet on all ranks, because one said that it cannot run there. A rank that only gave up waiting is not the
    /// cause: another one names it in a moment.
    async fn give_up(&mut self, why: &str) -> Result<(), StopReason> {
        self.call_off(&format!("it cannot run on another rank: {why}"));
        if self.done.iter().flatten().all(|done| done.outcome() == Outcome::Cancelled) {
            let _ = timeout(CAUSE_TIMEOUT, self.collect()).await;
        }
        self.attempt = None;
        Ok(())
    }

    async fn wait_for_turn(&mut self) -> Result<OwnedMutexGuard<()>, StopReason> {
        let turn = Arc::clone(&self.context.turn);
        tokio::select! {
            guard = turn.lock_owned() => Ok(guard),
            ClientGone = self.feed.pump() => Err(StopReason::ClientGone),
            () = sleep_until(self.deadline.into()) => Err(StopReason::Refused(
                Outcome::Timeout,
                "another snippet was still between two steps".into(),
                "SELECT * FROM probe.evals WHERE status = 'running' shows it".into(),
            )),
        }
    }

    /// Chooses the processes anew, as they are now, and waits a little for ranks that are not there yet: rank 0 may
    /// connect a moment before the others.
    async fn wait_for_ranks(&mut self) -> Result<(), StopReason> {
        let until = self.deadline.min(Instant::now() + RANKS_TIMEOUT);
        let mut changes = self.context.registry.changes();
        loop {
            changes.mark_unchanged();
            let group = group::choose(&self.context.registry.live(), &self.call, &self.context.run);
            self.group = group.map_err(|error| refused(&error))?;
            self.done = vec![None; self.group.targets.len()];
            if self.group.missing.is_empty() {
                return Ok(());
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return Err(StopReason::Deadline) },
                ClientGone = self.feed.pump() => return Err(StopReason::ClientGone),
                () = sleep_until(until.into()) => {
                    let missing: Vec<String> = self.group.missing.iter().map(i32::to_string).collect();
                    return Err(StopReason::Refused(
                        Outcome::Refused,
                        format!("not run: a snippet between steps runs on all ranks, and rank {} is not connected here", missing.join(", ")),
                        group::ALONE.into(),
                    ));
                }
            }
        }
    }

    /// The step that each rank is to stop after, by its own count: the same future step for all ranks; any step if their counts are
    /// not comparable.
    fn boundaries(&self) -> Vec<i64> {
        let now = Instant::now();
        let states = self.group.targets.iter().map(|target| target.agent.state());
        let ranks: Option<Vec<(f64, f64, i64)>> =
            states.map(|state| Some((state.estimated_step(now), state.steps_per_second, state.step_offset?))).collect();
        let Some(ranks) = ranks else { return vec![0; self.group.targets.len()] };
        let rate = ranks.iter().map(|(_, rate, _)| *rate).fold(0.0, f64::max);
        let ahead = ((rate * LEAD).ceil() as i64).max(MARGIN);
        let shared = ranks.iter().map(|(step, _, offset)| step + *offset as f64).fold(0.0, f64::max);
        ranks.iter().map(|(_, _, offset)| (shared.ceil() as i64 + ahead - offset).max(0)).collect()
    }

    /// How long the first rank at a boundary waits for the others in the first round: the time of some steps.
    fn patience(&self) -> Duration {
        let rates = self.group.targets.iter().map(|target| target.agent.state().steps_per_second);
        let slowest = rates.filter(|rate| *rate > 0.0).reduce(f64::min).unwrap_or(1.0);
        Duration::from_secs_f64((STEPS_OF_PATIENCE / slowest).clamp(MIN_PATIENCE, MAX_PATIENCE))
    }

    /// Waits until all ranks wait at the same boundary; returns the step before it.
    ///
    /// A rank that waits where another has already passed may keep that other from its boundary, in a collective that
    /// needs both. So when not all come, those that wait go on, and all stop at their next boundary.
    async fn meet(&mut self) -> Result<Result<i64, RankFailure>, StopReason> {
        let ranks = self.done.len();
        let (mut arrived, mut nexts) = (vec![None::<v1::Arrived>; ranks], vec![0_u32; ranks]);
        let (mut agreement, mut patience) = (BoundaryAgreement::default(), self.patience());
        let mut until = None::<Instant>;
        loop {
            let message = match until {
                Some(until) => timeout_at(until.into(), self.next()).await.ok(),
                None => Some(self.next().await),
            };
            match message.transpose()? {
                Some((index, AgentAnswer::Arrived(at))) => {
                    if at.nexts == nexts[index] {
                        arrived[index] = Some(at);
                        until = until.or(Some(Instant::now() + patience));
                    }
                }
                Some((index, AgentAnswer::Done(done))) => {
                    let last = done.error.lines().last().unwrap_or_default();
                    let why = format!("{}: {last}", self.group.targets[index].name());
                    self.end_rank(index, done);
                    return Ok(Err(RankFailure(why)));
                }
                Some((index, AgentAnswer::Gone)) => {
                    self.end_rank_that_has_gone(index);
                    return Ok(Err(RankFailure(format!("{} is gone", self.group.targets[index].name()))));
                }
                Some((_, AgentAnswer::Armed | AgentAnswer::Placed(_))) => {}
                None => {
                    patience = (patience * 2).min(Duration::from_secs_f64(MAX_PATIENCE));
                    until = None;
                    // Targets that have been told to go on stop at their next boundary without another message.
                    let indexes: Vec<usize> =
                        (0..ranks).filter(|index| arrived[*index].is_some() || nexts[*index] == 0).collect();
                    self.send_on(&indexes, &mut arrived, &mut nexts);
                }
            }
            let Some(all) = arrived.iter().cloned().collect::<Option<Vec<_>>>() else { continue };
            let offsets: Vec<Option<i64>> =
                self.group.targets.iter().map(|target| target.agent.state().step_offset).collect();
            match agreement.next(&all, &offsets) {
                NextRound::Go => {
                    self.learn_offsets(&all);
                    return Ok(Ok(all[0].step));
                }
                NextRound::On(indexes) => {
                    self.send_on(&indexes, &mut arrived, &mut nexts);
                    until = Some(Instant::now() + patience);
                }
                NextRound::Never(why) => {
                    return Err(StopReason::Refused(Outcome::Refused, format!("not run: {why}"), group::ALONE.into()));
                }
            }
        }
    }

    /// Tells the targets with these indexes to stop at their next boundary, and forgets their last report.
    fn send_on(&mut self, indexes: &[usize], arrived: &mut [Option<v1::Arrived>], nexts: &mut [u32]) {
        for index in indexes {
            (arrived[*index], nexts[*index]) = (None, nexts[*index] + 1);
            self.send(*index, |id| Frame::EvalNext(v1::EvalNext { id }));
        }
    }

    /// Stores how far the counts of steps are apart. All ranks wait at the same boundary, so their counts stand for the same
    /// step and can be compared from here on.
    fn learn_offsets(&self, arrived: &[v1::Arrived]) {
        for (target, at) in self.group.targets.iter().zip(arrived) {
            target.agent.state().step_offset = Some(arrived[0].step - at.step);
        }
    }

    /// Waits until the snippet has ended on all targets. When a process is gone, the others may wait for it in a collective:
    /// they are not waited for.
    async fn collect(&mut self) -> Result<(), StopReason> {
        while self.done.iter().any(Option::is_none) {
            match self.next().await? {
                (index, AgentAnswer::Done(done)) => self.end_rank(index, done),
                (index, AgentAnswer::Gone) => {
                    self.end_rank_that_has_gone(index);
                    if self.group.together {
                        self.call_off("another rank is gone");
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
