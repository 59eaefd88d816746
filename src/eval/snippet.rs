//! One snippet on its way: where it belongs, the step that all ranks run it at, what they say, and how it ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::eval_event::Event;
use probe_proto::v1::eval_reply::Reply;
use probe_proto::v1::{self, At, Done, EvalCall, EvalEvent, Finished, Outcome};
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::time::{sleep_until, timeout};
use tonic::Status;

use super::Broker;
use super::feed::{Feed, Hungup};
use super::group::{self, Group};
use super::log::Entry;
use super::routes::{FromAgent, Route, What};
use super::verdict::{hint, verdict};
use crate::collector::agent::cut;

/// Agents end a snippet at its deadline, and say more about it than we can; they get this much longer.
const GRACE: Duration = Duration::from_secs(2);
/// Ranks that are not connected yet are waited for this long.
const RANKS_TIMEOUT: Duration = Duration::from_secs(5);
/// A client takes what is left of the output within this time.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);
/// How far ahead of the ranks' steps a common step is first chosen, and at most (seconds of training).
const FIRST_LEAD: f64 = 0.25;
const LONGEST_LEAD: f64 = 8.0;
/// The same in steps, for runs whose speed is not known yet.
const FIRST_MARGIN: i64 = 2;
const LARGEST_MARGIN: i64 = 4096;
/// Longest traceback (bytes).
const LONGEST_ERROR: usize = 1 << 20;

pub(super) struct Snippet {
    broker: Arc<Broker>,
    call: EvalCall,
    group: Group,
    /// By place in `group.targets`.
    done: Vec<Option<Done>>,
    entry: Entry,
    feed: Feed,
    inbox: mpsc::UnboundedReceiver<FromAgent>,
    to_inbox: mpsc::UnboundedSender<FromAgent>,
    /// The attempt under way, and which targets have heard of it.
    attempt: Option<(Route, Vec<bool>)>,
    deadline: Instant,
}

/// Why a snippet does not go on.
enum Stop {
    Deadline,
    Hungup,
    OutputLimit,
    /// Nothing has run; why, and what to do.
    Refused(Outcome, String, String),
}

/// What an agent says that is not output.
enum Said {
    Placed(v1::Placed),
    Armed,
    Late(i64),
    Done(Done),
    Gone,
}

/// How arming all ranks for one step went.
enum Armed {
    All,
    /// A rank had passed the step.
    Late(i64),
    /// A rank cannot run it.
    Failed,
}

impl Snippet {
    pub(super) fn new(
        broker: Arc<Broker>,
        call: EvalCall,
        group: Group,
        entry: Entry,
        client: mpsc::Sender<Result<EvalEvent, Status>>,
    ) -> Self {
        let (to_inbox, inbox) = mpsc::unbounded_channel();
        let deadline = Instant::now() + Duration::from_secs_f64(call.timeout_s);
        let feed = Feed::new(client, call.max_output);
        let done = vec![None; group.targets.len()];
        Self { broker, call, group, done, entry, feed, inbox, to_inbox, attempt: None, deadline }
    }

    /// From the first command to the last event.
    pub(super) async fn run(mut self) {
        let ended = self.drive().await;
        let finished = match ended {
            Ok(()) => self.verdict(),
            Err(stop) => self.stopped(stop),
        };
        self.attempt = None;
        let record = &mut self.entry.record;
        let results = || self.done.iter().flatten();
        record.output_bytes = self.feed.bytes;
        record.step = results().map(|done| done.step).max();
        record.duration = results().map(|done| done.seconds).reduce(f64::max);
        record.training_waited = results().map(|done| done.training_waited_s).reduce(f64::max);
        self.entry.finish(finished.outcome(), &finished.error);
        self.feed.push(Event::Finished(finished));
        let _ = timeout(FLUSH_TIMEOUT, self.feed.flush()).await;
    }

    async fn drive(&mut self) -> Result<(), Stop> {
        if self.call.at() != At::Step {
            match self.beside().await? {
                Some(why) => return self.between_steps(why).await,
                None => return Ok(()),
            }
        }
        self.between_steps("asked for".into()).await
    }

    /// Runs it beside training. Some where it belongs between two steps instead (why): then nothing has run.
    async fn beside(&mut self) -> Result<Option<String>, Stop> {
        let shown = |group: &Group| -> Vec<usize> {
            group.targets.iter().enumerate().filter(|(_, target)| target.shown).map(|(place, _)| place).collect()
        };
        let places = shown(&self.group);
        let (first, others) = places.split_first().map_or((0, &[][..]), |(first, others)| (*first, others));
        self.begin_attempt();
        // The first one decides; the others are told.
        self.decide(first, self.call.at());
        loop {
            match self.next().await? {
                (place, Said::Placed(placed)) if place == first => {
                    if placed.at() == At::Step {
                        self.attempt = None;
                        return Ok(Some(placed.why));
                    }
                    self.placed(At::Now, placed.why, -1, |target| target.shown);
                    break;
                }
                (place, Said::Done(done)) => {
                    self.settle(place, done);
                    return Ok(None);
                }
                (place, Said::Gone) => {
                    self.settle_gone(place);
                    return Ok(None);
                }
                _ => {}
            }
        }
        for place in others {
            self.decide(*place, At::Now);
        }
        while places.iter().any(|place| self.done[*place].is_none()) {
            match self.next().await? {
                (place, Said::Done(done)) => self.settle(place, done),
                (place, Said::Gone) => self.settle_gone(place),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Runs it between two steps, on all ranks at the same one.
    async fn between_steps(&mut self, why: String) -> Result<(), Stop> {
        let _turn = self.wait_for_turn().await?;
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
                        self.cancel("another rank is gone");
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The next thing that an agent says about the attempt under way. Output is passed on here.
    async fn next(&mut self) -> Result<(usize, Said), Stop> {
        loop {
            let from = tokio::select! {
                Some(from) = self.inbox.recv() => from,
                Hungup = self.feed.pump() => return Err(Stop::Hungup),
                () = sleep_until((self.deadline + GRACE).into()) => return Err(Stop::Deadline),
            };
            let Some(place) = self.group.targets.iter().position(|target| target.agent.key == from.agent) else {
                continue;
            };
            let concerned = self.attempt.as_ref().is_some_and(|(_, told)| told[place]);
            if !concerned || self.done[place].is_some() {
                continue;
            }
            let (id, reply) = match from.what {
                What::Gone => return Ok((place, Said::Gone)),
                What::Said { id, reply } => (id, reply),
            };
            if self.attempt.as_ref().is_none_or(|(route, _)| route.id != id) {
                continue;
            }
            return Ok((
                place,
                match reply {
                    Reply::Output(output) => {
                        let target = &self.group.targets[place];
                        if target.shown && !self.feed.output(target.rank, &output) {
                            return Err(Stop::OutputLimit);
                        }
                        continue;
                    }
                    Reply::Placed(placed) => Said::Placed(placed),
                    Reply::Armed(_) => Said::Armed,
                    Reply::Late(late) => Said::Late(late.step),
                    Reply::Done(done) => Said::Done(done),
                },
            ));
        }
    }

    fn begin_attempt(&mut self) {
        self.attempt = Some((self.broker.routes.open(&self.to_inbox), vec![false; self.group.targets.len()]));
    }

    fn seconds_left(&self) -> f64 {
        self.deadline.saturating_duration_since(Instant::now()).as_secs_f64().max(0.1)
    }

    fn decide(&mut self, place: usize, at: At) {
        let (code, timeout_s, max_output) = (self.call.code.clone(), self.seconds_left(), self.call.max_output);
        self.send(place, |id| Frame::EvalDecide(v1::EvalDecide { id, code, at: at as i32, timeout_s, max_output }));
    }

    fn arm(&mut self, place: usize, step: i64) {
        let (code, timeout_s, max_output) = (self.call.code.clone(), self.seconds_left(), self.call.max_output);
        let mute = !self.group.targets[place].shown;
        self.send(place, |id| Frame::EvalArm(v1::EvalArm { id, code, step, timeout_s, max_output, mute }));
    }

    fn send(&mut self, place: usize, frame: impl FnOnce(u64) -> Frame) {
        let Some((route, told)) = &mut self.attempt else { return };
        told[place] = true;
        let agent = &self.group.targets[place].agent;
        if agent.send(frame(route.id)).is_err() {
            // Heard in the same order as everything else about it.
            let _ = self.to_inbox.send(FromAgent { agent: agent.key, what: What::Gone });
        }
    }

    /// Tells everybody who has heard of the attempt and has not ended.
    fn tell(&mut self, frame: impl Fn(u64) -> Frame) {
        let told = self.attempt.as_ref().map_or(Vec::new(), |(_, told)| told.clone());
        for (place, told) in told.into_iter().enumerate() {
            if told && self.done[place].is_none() {
                self.send(place, &frame);
            }
        }
    }

    fn cancel(&mut self, reason: &str) {
        self.tell(|id| Frame::EvalCancel(v1::EvalCancel { id, reason: reason.to_owned() }));
        self.attempt = None;
    }

    fn placed(&mut self, at: At, why: String, step: i64, of: impl Fn(&group::Target) -> bool) {
        let ranks = self.group.ranks(of);
        let text: Vec<String> = ranks.iter().map(i32::to_string).collect();
        self.entry.record.placed = Some(at);
        self.entry.record.ranks = (!text.is_empty()).then(|| text.join(","));
        self.entry.publish();
        self.feed.push(Event::Placement(v1::Placement { at: at as i32, why, step, ranks }));
    }

    fn settle(&mut self, place: usize, mut done: Done) {
        done.error = cut(done.error, LONGEST_ERROR);
        let target = &self.group.targets[place];
        if target.shown {
            self.feed.push(Event::RankDone(v1::RankDone { rank: target.rank, done: Some(done.clone()) }));
        }
        self.done[place] = Some(done);
    }

    fn settle_gone(&mut self, place: usize) {
        let target = &self.group.targets[place];
        let error = format!("{} is gone: its connection ended while the snippet was under way", target.name());
        let step = target.agent.state().step;
        self.settle(place, Done { outcome: Outcome::Error as i32, error, step, ..Default::default() });
    }

    fn verdict(&self) -> Finished {
        let results =
            self.group.targets.iter().zip(&self.done).filter_map(|(target, done)| Some((target, done.as_ref()?)));
        verdict(&results.collect::<Vec<_>>())
    }

    fn stopped(&mut self, stop: Stop) -> Finished {
        let waited = self.done.iter().flatten().map(|done| done.training_waited_s).fold(0.0, f64::max);
        let (outcome, error, advice) = match stop {
            Stop::Deadline => {
                let told = self.attempt.as_ref().map_or(&[][..], |(_, told)| told);
                let silent = self.group.targets.iter().zip(&self.done).zip(told);
                let silent =
                    silent.filter(|((_, done), told)| **told && done.is_none()).map(|((target, _), _)| target.name());
                let who = silent.collect::<Vec<_>>().join(", ");
                (
                    Outcome::Timeout,
                    format!("no answer from {who} within {} s", self.call.timeout_s),
                    hint(Outcome::Timeout).to_owned(),
                )
            }
            Stop::Hungup => (Outcome::Cancelled, "whoever asked is gone".into(), String::new()),
            Stop::OutputLimit => (
                Outcome::OutputLimit,
                format!("it printed more than {} bytes", self.call.max_output),
                hint(Outcome::OutputLimit).to_owned(),
            ),
            Stop::Refused(outcome, error, advice) => (outcome, error, advice),
        };
        self.cancel(&error);
        Finished { outcome: outcome as i32, error, hint: advice, training_waited_s: waited }
    }
}
