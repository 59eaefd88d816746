//! How a snippet ends: what whoever asked hears, what its row says, and what of it runs on after both.
//!
//! A call into C cannot be interrupted. Its agent says so with Done, or says nothing because the call keeps the GIL too;
//! whoever asked hears that at the deadline. The row stays `running` until a second Done, or the end of the process.

use probe_proto::v1::eval_reply::Reply;
use probe_proto::v1::{Finished, Outcome};

use super::{Snippet, Stop};
use crate::eval::routes::{FromAgent, What};
use crate::eval::verdict::{hint, verdict};

impl Snippet {
    pub(super) fn verdict(&self) -> Finished {
        let results =
            self.group.targets.iter().zip(&self.done).filter_map(|(target, done)| Some((target, done.as_ref()?)));
        verdict(&results.collect::<Vec<_>>())
    }

    pub(super) fn stopped(&mut self, stop: Stop) -> Finished {
        let waited = self.done.iter().flatten().map(|done| done.training_waited_s).fold(0.0, f64::max);
        let (outcome, error, advice) = match stop {
            Stop::Deadline => {
                let (error, advice) = self.unanswered();
                (Outcome::Timeout, error, advice)
            }
            Stop::Hungup => (Outcome::Cancelled, "the client has disconnected".into(), String::new()),
            Stop::OutputLimit => (
                Outcome::OutputLimit,
                format!("it printed more than {} bytes", self.call.max_output),
                hint(Outcome::OutputLimit).to_owned(),
            ),
            Stop::Refused(outcome, error, advice) => (outcome, error, advice),
        };
        self.call_off(&error);
        Finished { outcome: outcome as i32, error, hint: advice, training_waited_s: waited }
    }

    /// Who has said nothing until the deadline, and what that means.
    fn unanswered(&self) -> (String, String) {
        let told = self.attempt.as_ref().map_or(&[][..], |(_, told)| told);
        let silent: Vec<usize> = (0..told.len()).filter(|place| told[*place] && self.done[*place].is_none()).collect();
        let names: Vec<String> = silent.iter().map(|place| self.group.targets[*place].name()).collect();
        let mut error = format!("no answer from {} within {} s", names.join(", "), self.call.timeout_s);
        let mut advice = hint(Outcome::Timeout).to_owned();
        if let Some(first) = silent.first() {
            let pid = self.group.targets[*first].pid;
            if silent.iter().any(|place| self.heard[*place]) {
                error += "; the snippet may still be running, in a call that keeps the GIL";
            } else {
                error += "; the snippet has not begun and will not, because no thread there gets the GIL";
            }
            advice = format!("probe {pid} stack shows where it is");
        }
        (error, advice)
    }

    /// Whether anything of it runs on, or may: its processes have taken it, and not said that it is over.
    pub(super) fn runs_on(&self) -> bool {
        let Some((_, told)) = &self.attempt else { return false };
        (0..told.len()).any(|place| {
            told[place]
                && match &self.done[place] {
                    Some(done) => done.still_running,
                    None => self.heard[place],
                }
        })
    }

    /// Takes what has been said and not been heard yet.
    pub(super) fn catch_up(&mut self) {
        while let Ok(from) = self.inbox.try_recv() {
            self.hear_afterwards(from);
        }
    }

    /// Waits until nothing of it runs any more.
    pub(super) async fn linger(&mut self) {
        while self.runs_on() {
            let Some(from) = self.inbox.recv().await else { return };
            self.hear_afterwards(from);
        }
    }

    pub(super) fn hear_afterwards(&mut self, from: FromAgent) {
        if let Some(place) = self.group.targets.iter().position(|target| target.agent.key == from.agent) {
            self.afterwards(place, from.what);
        }
    }

    /// Takes what a process says once it is not waited for any more: that it is over there.
    pub(super) fn afterwards(&mut self, place: usize, what: What) {
        let Some((route, told)) = &self.attempt else { return };
        match what {
            _ if !told[place] => {}
            What::Gone => {
                self.heard[place] = false;
                if let Some(done) = &mut self.done[place] {
                    done.still_running = false;
                }
            }
            What::Said { id, .. } if id != route.id => {}
            What::Said { reply: Reply::Done(done), .. } => self.done[place] = Some(done),
            What::Said { .. } => self.heard[place] = true,
        }
    }

    /// Its row says how it ended, and the next one may have its turn.
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
