//! How a snippet ends: what the client is told, what the row says, and what runs on after both.
//!
//! A call into C cannot be interrupted. Its agent says so with Done, or says nothing because the call keeps the GIL too;
//! the client is told at the deadline. The row stays `running` until a second Done, or the end of the process.

use probe_proto::v1::eval_reply::Reply;
use probe_proto::v1::{Finished, Outcome};

use super::{SnippetRun, StopReason};
use crate::eval::routes::{AgentMessage, AgentReply};
use crate::eval::verdict::{hint, verdict};

impl SnippetRun {
    pub(super) fn verdict(&self) -> Finished {
        let results =
            self.group.targets.iter().zip(&self.done).filter_map(|(target, done)| Some((target, done.as_ref()?)));
        verdict(&results.collect::<Vec<_>>())
    }

    pub(super) fn stopped(&mut self, stop: StopReason) -> Finished {
        let waited = self.done.iter().flatten().map(|done| done.training_waited_s).fold(0.0, f64::max);
        let (outcome, error, advice) = match stop {
            StopReason::Deadline => {
                let (error, advice) = self.unanswered();
                (Outcome::Timeout, error, advice)
            }
            StopReason::ClientGone => (Outcome::Cancelled, "the client has disconnected".into(), String::new()),
            StopReason::OutputLimit => (
                Outcome::OutputLimit,
                format!("it printed more than {} bytes", self.call.max_output),
                hint(Outcome::OutputLimit).to_owned(),
            ),
            StopReason::Refused(outcome, error, advice) => (outcome, error, advice),
        };
        self.call_off(&error);
        Finished { outcome: outcome as i32, error, hint: advice, training_waited_s: waited }
    }

    /// The error and the hint of a snippet at its deadline: which targets have said nothing, and what that means.
    fn unanswered(&self) -> (String, String) {
        let notified = self.attempt.as_ref().map_or(&[][..], |(_, notified)| notified);
        let silent: Vec<usize> =
            (0..notified.len()).filter(|index| notified[*index] && self.done[*index].is_none()).collect();
        let names: Vec<String> = silent.iter().map(|index| self.group.targets[*index].name()).collect();
        let mut error = format!("no answer from {} within {} s", names.join(", "), self.call.timeout_s);
        let mut advice = hint(Outcome::Timeout).to_owned();
        if let Some(first) = silent.first() {
            let pid = self.group.targets[*first].pid;
            if silent.iter().any(|index| self.heard[*index]) {
                error += "; the snippet may still be running, in a call that keeps the GIL";
            } else {
                error += "; the snippet has not begun and will not, because no thread there gets the GIL";
            }
            advice = format!("probe {pid} stack shows where it is");
        }
        (error, advice)
    }

    /// Whether a process may still run the snippet: it accepted the snippet and has not reported the end.
    pub(super) fn runs_on(&self) -> bool {
        let Some((_, notified)) = &self.attempt else { return false };
        (0..notified.len()).any(|index| {
            notified[index]
                && match &self.done[index] {
                    Some(done) => done.still_running,
                    None => self.heard[index],
                }
        })
    }

    /// Takes the messages that wait in the inbox.
    pub(super) fn catch_up(&mut self) {
        while let Ok(from) = self.inbox.try_recv() {
            self.hear_afterwards(from);
        }
    }

    /// Waits until the snippet runs in no process any more.
    pub(super) async fn linger(&mut self) {
        while self.runs_on() {
            let Some(from) = self.inbox.recv().await else { return };
            self.hear_afterwards(from);
        }
    }

    pub(super) fn hear_afterwards(&mut self, from: AgentMessage) {
        if let Some(index) = self.group.targets.iter().position(|target| target.agent.key == from.agent) {
            self.afterwards(index, from.signal);
        }
    }

    /// Takes a message of a process that is not waited for any more: it may say that the snippet is over there.
    pub(super) fn afterwards(&mut self, index: usize, signal: AgentReply) {
        let Some((route, notified)) = &self.attempt else { return };
        match signal {
            _ if !notified[index] => {}
            AgentReply::Gone => {
                self.heard[index] = false;
                if let Some(done) = &mut self.done[index] {
                    done.still_running = false;
                }
            }
            AgentReply::Answer { id, .. } if id != route.id => {}
            AgentReply::Answer { reply: Reply::Done(done), .. } => self.done[index] = Some(done),
            AgentReply::Answer { .. } => self.heard[index] = true,
        }
    }

    /// Writes how the snippet ended to its row, and gives its turn to the next one.
    pub(super) fn close(&mut self, finished: &Finished) {
        (self.attempt, self.turn) = (None, None);
        let record = &mut self.entry.record;
        let results = || self.done.iter().flatten();
        record.output_bytes = self.feed.bytes;
        record.step = results().map(|done| done.step).max();
        record.duration = results().map(|done| done.seconds).reduce(f64::max);
        record.training_waited = results().map(|done| done.training_waited_s).reduce(f64::max);
        self.entry.finish(finished.outcome(), &finished.error);
    }
}
