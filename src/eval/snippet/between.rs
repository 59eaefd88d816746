//! A snippet between two steps: whose turn it is, which ranks there are, and the step that they all run it at.

use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::{self, At, Outcome};
use tokio::sync::OwnedMutexGuard;
use tokio::time::sleep_until;

use super::{Said, Snippet, Stop};
use crate::eval::feed::Hungup;
use crate::eval::group;

/// Ranks that are not connected yet are waited for this long.
const RANKS_TIMEOUT: Duration = Duration::from_secs(5);
/// How far ahead of the ranks' steps a common step is first chosen, and at most (seconds of training).
const FIRST_LEAD: f64 = 0.25;
const LONGEST_LEAD: f64 = 8.0;
/// The same in steps, for runs whose speed is not known yet.
const FIRST_MARGIN: i64 = 2;
const LARGEST_MARGIN: i64 = 4096;

/// How arming all ranks for one step went.
enum Armed {
    All,
    /// A rank had passed the step.
    Late(i64),
    /// A rank cannot run it.
    Failed,
}

impl Snippet {
    /// Runs it between two steps, on all ranks at the same one.
    pub(super) async fn between_steps(&mut self, why: String) -> Result<(), Stop> {
        self.turn = Some(self.wait_for_turn().await?);
        self.wait_for_ranks().await?;
        let everyone: Vec<usize> = (0..self.group.targets.len()).collect();
        if !self.group.together {
            self.begin_attempt();
            self.placed(At::Step, why, -1, |_| true);
            for place in everyone {
                self.arm(place, -1);
            }
            return self.collect().await;
        }
        let (mut lead, mut margin, mut passed) = (FIRST_LEAD, FIRST_MARGIN, -1);
        loop {
            let step = self.common_step(lead, margin, passed);
            self.begin_attempt();
            for place in &everyone {
                self.arm(*place, step);
            }
            match self.wait_until_armed().await? {
                Armed::All => {
                    self.placed(At::Step, why, step, |_| true);
                    self.tell(|id| Frame::EvalGo(v1::EvalGo { id }));
                    return self.collect().await;
                }
                Armed::Late(at) => {
                    self.cancel(&format!("a rank had passed step {step}; another one is chosen"));
                    passed = passed.max(at);
                    lead = (lead * 2.0).min(LONGEST_LEAD);
                    margin = (margin * 2).min(LARGEST_MARGIN);
                }
                Armed::Failed => {
                    self.cancel("it cannot run on another rank");
                    return Ok(());
                }
            }
        }
    }

    async fn wait_for_turn(&mut self) -> Result<OwnedMutexGuard<()>, Stop> {
        let turn = Arc::clone(&self.broker.turn);
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
        let mut changes = self.broker.registry.changes();
        loop {
            changes.mark_unchanged();
            let group = group::choose(&self.broker.registry.live(), &self.call, &self.broker.run);
            self.group = group.map_err(|error| {
                let hint = error.hint_text().unwrap_or_default().to_owned();
                Stop::Refused(Outcome::Refused, error.to_string(), hint)
            })?;
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
                        "--rank N runs it on one rank alone, which must not take part in collectives then".into(),
                    ));
                }
            }
        }
    }

    /// A step that no rank should have reached by the time it hears of it.
    fn common_step(&self, lead: f64, margin: i64, passed: i64) -> i64 {
        let now = Instant::now();
        let (mut furthest, mut rate) = (passed as f64, 0.0_f64);
        for target in &self.group.targets {
            let state = target.agent.state();
            furthest = furthest.max(state.estimated_step(now));
            rate = rate.max(state.steps_per_second);
        }
        furthest.ceil() as i64 + ((rate * lead).ceil() as i64).max(margin)
    }

    async fn wait_until_armed(&mut self) -> Result<Armed, Stop> {
        let mut armed = vec![false; self.done.len()];
        while armed.contains(&false) {
            match self.next().await? {
                (place, Said::Armed) => armed[place] = true,
                (_, Said::Late(step)) => return Ok(Armed::Late(step)),
                (place, Said::Done(done)) => {
                    self.settle(place, done);
                    return Ok(Armed::Failed);
                }
                (place, Said::Gone) => {
                    self.settle_gone(place);
                    return Ok(Armed::Failed);
                }
                (_, Said::Placed(_)) => {}
            }
        }
        Ok(Armed::All)
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
