//! One running snippet: where it runs, what its processes say, and how it ends.

mod agreement;
mod between;
mod ending;
mod patience;
mod silence;

use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::eval_event::Event;
use probe_proto::v1::eval_reply::Reply;
use probe_proto::v1::{self, At, Done, EvalCall, EvalEvent, Outcome};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, mpsc};
use tokio::time::{sleep_until, timeout};
use tonic::Status;

use super::context::EvalContext;
use super::feed::{ClientFeed, ClientGone};
use super::group::{self, SnippetGroup};
use super::log::EvalEntry;
use super::routes::{AgentMessage, AgentReply, ReplyRoute};
use crate::truncate::truncate;

/// How much longer than the deadline agents are waited for: they end a snippet at its deadline, and know more about it than
/// the collector.
const EXTRA_TIMEOUT: Duration = Duration::from_secs(2);
/// Within this time a client has to take the rest of the output.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest traceback (bytes).
const MAX_ERROR_LENGTH: usize = 1 << 20;

pub(super) struct SnippetRun {
    context: Arc<EvalContext>,
    call: EvalCall,
    over_tcp: bool,
    group: SnippetGroup,
    /// How the snippet ended, by index into `group.targets`; None while it runs.
    done: Vec<Option<Done>>,
    entry: EvalEntry,
    feed: ClientFeed,
    inbox: mpsc::UnboundedReceiver<AgentMessage>,
    to_inbox: mpsc::UnboundedSender<AgentMessage>,
    /// The current attempt, and by target whether it has been notified.
    attempt: Option<(ReplyRoute, Vec<bool>)>,
    /// By target, whether it has said anything about the attempt: then it has taken the snippet.
    heard: Vec<bool>,
    /// When the client is told which targets have said nothing.
    named_at: Option<Instant>,
    /// Held from the snippet's turn between two steps on.
    turn: Option<OwnedMutexGuard<()>>,
    deadline: Instant,
}

/// Why a snippet does not go on.
enum StopReason {
    Deadline,
    ClientGone,
    OutputLimit,
    /// Nothing has run: the outcome, why, and what to do.
    Refused(Outcome, String, String),
}

/// What an agent says that is not output.
enum AgentAnswer {
    Placed(v1::Placed),
    Armed,
    Arrived(v1::Arrived),
    Done(Done),
    Gone,
}

impl SnippetRun {
    pub(super) fn new(
        context: Arc<EvalContext>,
        call: EvalCall,
        over_tcp: bool,
        group: SnippetGroup,
        entry: EvalEntry,
        client: mpsc::Sender<Result<EvalEvent, Status>>,
    ) -> Self {
        let (to_inbox, inbox) = mpsc::unbounded_channel();
        let deadline = Instant::now() + Duration::from_secs_f64(call.timeout_s);
        let feed = ClientFeed::new(client, call.max_output);
        let done = vec![None; group.targets.len()];
        let (attempt, heard, named_at, turn) = (None, Vec::new(), None, None);
        Self {
            context,
            call,
            over_tcp,
            group,
            done,
            entry,
            feed,
            inbox,
            to_inbox,
            attempt,
            heard,
            named_at,
            turn,
            deadline,
        }
    }

    /// Runs the snippet, from the first command to the last event, and until what could not be ended has ended. `permit` is
    /// given back as soon as the client has heard how the snippet ended.
    pub(super) async fn run(mut self, permit: OwnedSemaphorePermit) {
        let ended = self.drive().await;
        let finished = match ended {
            Ok(()) => self.verdict(),
            Err(stop) => self.stopped(stop),
        };
        self.catch_up();
        let runs_on = self.runs_on();
        if runs_on {
            self.entry.runs_on(&finished.error);
        } else {
            self.close(&finished);
        }
        self.feed.push(Event::Finished(finished.clone()));
        let _ = timeout(FLUSH_TIMEOUT, self.hand_over()).await;
        drop(permit);
        if runs_on {
            self.feed.hang_up();
            self.linger().await;
            self.close(&finished);
        }
    }

    /// Waits until the client has all its events. What agents send meanwhile is taken, so that it does not pile up.
    async fn hand_over(&mut self) {
        loop {
            tokio::select! {
                _ = self.feed.flush() => return,
                Some(from) = self.inbox.recv() => self.hear_afterwards(from),
            }
        }
    }

    async fn drive(&mut self) -> Result<(), StopReason> {
        if self.call.at() != At::Step {
            match self.beside().await? {
                Some(why) => return self.between_steps(why).await,
                None => return Ok(()),
            }
        }
        self.between_steps("asked for".into()).await
    }

    /// Runs the snippet beside training. Some(why) where it has to run between two steps instead: then nothing has run.
    async fn beside(&mut self) -> Result<Option<String>, StopReason> {
        let shown = |group: &SnippetGroup| -> Vec<usize> {
            group.targets.iter().enumerate().filter(|(_, target)| target.shown).map(|(index, _)| index).collect()
        };
        let indexes = shown(&self.group);
        let (first, others) = indexes.split_first().map_or((0, &[][..]), |(first, others)| (*first, others));
        self.begin_attempt();
        // The first target decides; the others are told.
        self.decide(first, self.call.at());
        loop {
            match self.next().await? {
                (index, AgentAnswer::Placed(placed)) if index == first => {
                    if placed.at() == At::Step {
                        self.attempt = None;
                        return Ok(Some(placed.why));
                    }
                    self.placed(At::Now, placed.why, -1, |target| target.shown);
                    break;
                }
                (index, AgentAnswer::Done(done)) => {
                    self.end_rank(index, done);
                    return Ok(None);
                }
                (index, AgentAnswer::Gone) => {
                    self.end_rank_that_has_gone(index);
                    return Ok(None);
                }
                _ => {}
            }
        }
        for index in others {
            self.decide(*index, At::Now);
        }
        while indexes.iter().any(|index| self.done[*index].is_none()) {
            match self.next().await? {
                (index, AgentAnswer::Done(done)) => self.end_rank(index, done),
                (index, AgentAnswer::Gone) => self.end_rank_that_has_gone(index),
                _ => {}
            }
        }
        Ok(None)
    }

    /// The next message of an agent about the current attempt, and the index of the agent's target. Output is passed on
    /// here.
    async fn next(&mut self) -> Result<(usize, AgentAnswer), StopReason> {
        loop {
            let from = tokio::select! {
                Some(from) = self.inbox.recv() => from,
                ClientGone = self.feed.pump() => return Err(StopReason::ClientGone),
                () = patience::until(self.named_at) => {
                    self.name_the_silent();
                    continue;
                }
                () = sleep_until((self.deadline + EXTRA_TIMEOUT).into()) => return Err(StopReason::Deadline),
            };
            let Some(index) = self.group.targets.iter().position(|target| target.agent.key == from.agent) else {
                continue;
            };
            let concerned = self.attempt.as_ref().is_some_and(|(_, notified)| notified[index]);
            if !concerned || self.done[index].is_some() {
                self.afterwards(index, from.signal);
                continue;
            }
            let (id, reply) = match from.signal {
                AgentReply::Gone => return Ok((index, AgentAnswer::Gone)),
                AgentReply::Answer { id, reply } => (id, reply),
            };
            if self.attempt.as_ref().is_none_or(|(route, _)| route.id != id) {
                continue;
            }
            self.heard[index] = true;
            return Ok((
                index,
                match reply {
                    Reply::Output(output) => {
                        let target = &self.group.targets[index];
                        if target.shown && !self.feed.output(target.rank, &output) {
                            return Err(StopReason::OutputLimit);
                        }
                        continue;
                    }
                    Reply::Placed(placed) => AgentAnswer::Placed(placed),
                    Reply::Armed(_) => AgentAnswer::Armed,
                    Reply::Arrived(arrived) => AgentAnswer::Arrived(arrived),
                    Reply::Done(done) => AgentAnswer::Done(done),
                },
            ));
        }
    }

    fn begin_attempt(&mut self) {
        self.attempt = Some((self.context.routes.open(&self.to_inbox), vec![false; self.group.targets.len()]));
        self.heard = vec![false; self.group.targets.len()];
        self.named_at = Some(Instant::now() + patience::SILENCE_TIMEOUT);
    }

    fn seconds_left(&self) -> f64 {
        self.deadline.saturating_duration_since(Instant::now()).as_secs_f64().max(0.1)
    }

    fn decide(&mut self, index: usize, at: At) {
        let (code, timeout_s, max_output) = (self.call.code.clone(), self.seconds_left(), self.call.max_output);
        let (at, scope, over_tcp) = (at as i32, Some(self.scope()), self.over_tcp);
        self.send(index, |id| {
            Frame::EvalDecide(v1::EvalDecide { id, code, at, timeout_s, max_output, scope, over_tcp })
        });
    }

    fn arm(&mut self, index: usize, step: i64) {
        let (code, timeout_s, max_output) = (self.call.code.clone(), self.seconds_left(), self.call.max_output);
        let (mute, scope, over_tcp) = (!self.group.targets[index].shown, Some(self.scope()), self.over_tcp);
        self.send(index, |id| {
            Frame::EvalArm(v1::EvalArm {
                id,
                code,
                step,
                timeout_s,
                max_output,
                mute,
                scope,
                over_tcp,
                hears_arrived: true,
            })
        });
    }

    fn scope(&self) -> v1::EvalScope {
        let (session, end_session, frame) = (self.call.session.clone(), self.call.end_session, self.call.frame);
        let (complete, asked_s) = (self.call.complete.clone(), self.call.timeout_s);
        v1::EvalScope { session, end_session, frame, complete, asked_s }
    }

    fn send(&mut self, index: usize, frame: impl FnOnce(u64) -> Frame) {
        let Some((route, notified)) = &mut self.attempt else { return };
        notified[index] = true;
        let agent = &self.group.targets[index].agent;
        if agent.send(frame(route.id)).is_err() {
            // By the inbox, so that it comes in order with all else about the attempt.
            let _ = self.to_inbox.send(AgentMessage { agent: agent.key, signal: AgentReply::Gone });
        }
    }

    /// Sends a frame to all targets that have been notified of the attempt and have not ended.
    fn tell(&mut self, frame: impl Fn(u64) -> Frame) {
        let notified = self.attempt.as_ref().map_or(Vec::new(), |(_, notified)| notified.clone());
        for (index, notified) in notified.into_iter().enumerate() {
            if notified && self.done[index].is_none() {
                self.send(index, &frame);
            }
        }
    }

    /// Ends the attempt wherever it has not ended. What agents say about it is still taken.
    fn call_off(&mut self, reason: &str) {
        self.tell(|id| Frame::EvalCancel(v1::EvalCancel { id, reason: reason.to_owned() }));
    }

    fn placed(&mut self, at: At, why: String, step: i64, of: impl Fn(&group::SnippetTarget) -> bool) {
        let ranks = self.group.ranks(of);
        let text: Vec<String> = ranks.iter().map(i32::to_string).collect();
        self.entry.record.placed = Some(at);
        self.entry.record.ranks = (!text.is_empty()).then(|| text.join(","));
        self.entry.publish();
        self.feed.push(Event::Placement(v1::Placement { at: at as i32, why, step, ranks }));
    }

    fn end_rank(&mut self, index: usize, mut done: Done) {
        done.error = truncate(done.error, MAX_ERROR_LENGTH);
        let target = &self.group.targets[index];
        if target.shown {
            self.feed.push(Event::RankDone(v1::RankDone { rank: target.rank, done: Some(done.clone()) }));
        }
        self.done[index] = Some(done);
    }

    fn end_rank_that_has_gone(&mut self, index: usize) {
        let target = &self.group.targets[index];
        let error = format!("{} is gone: its connection ended while the snippet was under way", target.name());
        let step = target.agent.state().step;
        self.end_rank(index, Done { outcome: Outcome::Error as i32, error, step, ..Default::default() });
    }
}
