//! A snippet between two steps: whose turn it is, which ranks there are, and the step that they all run it at.

use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_common::error::Error;
use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::{self, At, Outcome};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{sleep_until, timeout, timeout_at};

use super::agreement::{Agreement, Next};
use super::{Said, Snippet, Stop};
use crate::eval::feed::Hungup;
use crate::eval::group;

/// Ranks that are not connected yet are waited for this long.
const RANKS_TIMEOUT: Duration = Duration::from_secs(5);
/// How far ahead of a rank's steps its boundary is chosen, so that all have been told when they come there (seconds of
/// training), and in steps at least.
const LEAD: f64 = 0.25;
const MARGIN: i64 = 2;
/// The first at a boundary waits for the others for so many steps at first, and within these bounds (s).
const STEPS_OF_PATIENCE: f64 = 4.0;
const MIN_PATIENCE: f64 = 0.1;
const MAX_PATIENCE: f64 = 5.0;
/// Why no rank can run it is waited for so long.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Nothing has run: what was wrong, and what to do.
fn refused(error: &Error) -> Stop {
    Stop::Refused(Outcome::Refused, error.to_string(), error.hint_text().unwrap_or_default().into())
}

/// A rank cannot run it: which, and what it said.
struct Failed(String);

impl Snippet {
    /// Runs it between two steps, on all ranks at the same one: each stops at a boundary and says where it is, and none
    /// runs it before all wait at the same place.
    pub(super) async fn between_steps(&mut self, why: String) -> Result<(), Stop> {
        self.turn = Some(self.wait_for_turn().await?);
        self.wait_for_ranks().await?;
        let everyone: Vec<usize> = (0..self.group.targets.len()).collect();
        self.begin_attempt();
        if !self.group.together {
            self.placed(At::Step, why, -1, |_| true);
            for place in everyone {
                self.arm(place, -1);
            }
            return self.collect().await;
        }
        self.group.check_can_meet().map_err(|error| refused(&error))?;
        for (place, step) in self.boundaries().into_iter().enumerate() {
            self.arm(place, step);
        }
        match self.meet().await? {
            Ok(step) => {
                self.placed(At::Step, why, step, |_| true);
                self.tell(|id| Frame::EvalGo(v1::EvalGo { id }));
            }
            Err(Failed(why)) => return self.give_up(&why).await,
        }
        self.collect().await
    }

    /// It runs on no rank, since one said that it cannot there. One that only gave up waiting is not the cause: another
    /// says that in a moment.
    async fn give_up(&mut self, why: &str) -> Result<(), Stop> {
        self.call_off(&format!("it cannot run on another rank: {why}"));
        if self.done.iter().flatten().all(|done| done.outcome() == Outcome::Cancelled) {
            let _ = timeout(CAUSE_TIMEOUT, self.collect()).await;
        }
        self.attempt = None;
        Ok(())
    }

    async fn wait_for_turn(&mut self) -> Result<OwnedMutexGuard<()>, Stop> {
        let turn = Arc::clone(&self.context.turn);
        tokio::select! {
            guard = turn.lock_owned() => Ok(guard),
            Hungup = self.feed.pump() => Err(Stop::Hungup),
            () = sleep_until(self.deadline.into()) => Err(Stop::Refused(
                Outcome::Timeout,
                "another snippet was still between two steps".into(),
                "SELECT * FROM probe.evals WHERE status = 'running' shows it".into(),
            )),
        }
    }

    /// Chooses the processes anew, as they are now, and waits a little for ranks that are not there yet: rank 0 may
    /// connect a moment before the others.
    async fn wait_for_ranks(&mut self) -> Result<(), Stop> {
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
                changed = changes.changed() => if changed.is_err() { return Err(Stop::Deadline) },
                Hungup = self.feed.pump() => return Err(Stop::Hungup),
                () = sleep_until(until.into()) => {
                    let missing: Vec<String> = self.group.missing.iter().map(i32::to_string).collect();
                    return Err(Stop::Refused(
                        Outcome::Refused,
                        format!("not run: a snippet between steps runs on all ranks, and rank {} is not connected here", missing.join(", ")),
                        group::ALONE.into(),
                    ));
                }
            }
        }
    }

    /// The step that each rank is to stop after: the same one, which none should have reached by the time it hears of it;
    /// or any, where their counts can't be compared.
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

    /// How long the first at a boundary waits for the others at first: some steps.
    fn patience(&self) -> Duration {
        let rates = self.group.targets.iter().map(|target| target.agent.state().steps_per_second);
        let slowest = rates.filter(|rate| *rate > 0.0).reduce(f64::min).unwrap_or(1.0);
        Duration::from_secs_f64((STEPS_OF_PATIENCE / slowest).clamp(MIN_PATIENCE, MAX_PATIENCE))
    }

    /// Until all ranks wait at the same boundary: the step before it.
    ///
    /// One that waits where another has already passed may keep that other from its boundary, in a collective that
    /// needs both. So when not all come, those that wait go on, and all stop at their next boundary.
    async fn meet(&mut self) -> Result<Result<i64, Failed>, Stop> {
        let ranks = self.done.len();
        let (mut arrived, mut nexts) = (vec![None::<v1::Arrived>; ranks], vec![0_u32; ranks]);
        let (mut agreement, mut patience) = (Agreement::default(), self.patience());
        let mut until = None::<Instant>;
        loop {
            let said = match until {
                Some(until) => timeout_at(until.into(), self.next()).await.ok(),
                None => Some(self.next().await),
            };
            match said.transpose()? {
                Some((place, Said::Arrived(at))) => {
                    if at.nexts == nexts[place] {
                        arrived[place] = Some(at);
                        until = until.or(Some(Instant::now() + patience));
                    }
                }
                Some((place, Said::Done(done))) => {
                    let last = done.error.lines().last().unwrap_or_default();
                    let why = format!("{}: {last}", self.group.targets[place].name());
                    self.settle(place, done);
                    return Ok(Err(Failed(why)));
                }
                Some((place, Said::Gone)) => {
                    self.settle_gone(place);
                    return Ok(Err(Failed(format!("{} is gone", self.group.targets[place].name()))));
                }
                Some((_, Said::Armed | Said::Placed(_))) => {}
                None => {
                    patience = (patience * 2).min(Duration::from_secs_f64(MAX_PATIENCE));
                    until = None;
                    // Those that have been told stop at their next boundary without another word.
                    let places: Vec<usize> =
                        (0..ranks).filter(|place| arrived[*place].is_some() || nexts[*place] == 0).collect();
                    self.send_on(&places, &mut arrived, &mut nexts);
                }
            }
            let Some(all) = arrived.iter().cloned().collect::<Option<Vec<_>>>() else { continue };
            let offsets: Vec<Option<i64>> =
                self.group.targets.iter().map(|target| target.agent.state().step_offset).collect();
            match agreement.next(&all, &offsets) {
                Next::Go => {
                    self.learn_offsets(&all);
                    return Ok(Ok(all[0].step));
                }
                Next::On(places) => {
                    self.send_on(&places, &mut arrived, &mut nexts);
                    until = Some(Instant::now() + patience);
                }
                Next::Never(why) => {
                    return Err(Stop::Refused(Outcome::Refused, format!("not run: {why}"), group::ALONE.into()));
                }
            }
        }
    }

    /// Has these stop at their next boundary: what they said of the one before holds no more.
    fn send_on(&mut self, places: &[usize], arrived: &mut [Option<v1::Arrived>], nexts: &mut [u32]) {
        for place in places {
            (arrived[*place], nexts[*place]) = (None, nexts[*place] + 1);
            self.send(*place, |id| Frame::EvalNext(v1::EvalNext { id }));
        }
    }

    /// All wait at the same place, so their counts of steps mean the same: from here on they can be compared.
    fn learn_offsets(&self, arrived: &[v1::Arrived]) {
        for (target, at) in self.group.targets.iter().zip(arrived) {
            target.agent.state().step_offset = Some(arrived[0].step - at.step);
        }
    }

    /// Waits for everybody's end. When a process is gone, the others may wait for it in a collective: they are not
    /// waited for.
    async fn collect(&mut self) -> Result<(), Stop> {
        while self.done.iter().any(Option::is_none) {
            match self.next().await? {
                (place, Said::Done(done)) => self.settle(place, done),
                (place, Said::Gone) => {
                    self.settle_gone(place);
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
