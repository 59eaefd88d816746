//! What the processes of a capture are asked, by snippets of ours, and what they say: lines of JSON.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use probe_common::error::{Error, Kind, Result};
use probe_proto::v1::eval_event::Event;
use probe_proto::v1::{At, Finished, Outcome};
use probe_store::Identity;
use serde::Deserialize;

use super::plan::{Plan, who};
use crate::eval::{Broker, Events};
use crate::server::peer::Caller;

/// A line that a process prints about a capture.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Line {
    pub pid: i32,
    pub host: String,
    /// Why it does not begin, or came to nothing.
    pub problem: Option<String>,
    /// Whether its deadline is why.
    pub late: bool,
    /// It begins at this step.
    pub step: Option<i64>,
    /// Steps done so far.
    pub steps: Option<u32>,
    /// It is over, and this is its first step.
    pub first: Option<i64>,
    /// What each of its steps took.
    pub seconds: Vec<f64>,
    /// How long training stood still.
    pub waited: f64,
    /// Where the trace is.
    pub file: Option<String>,
    /// What it did otherwise than was asked, and why.
    pub note: Option<String>,
}

/// Output of processes, cut into lines.
#[derive(Debug, Default)]
pub(super) struct Lines(HashMap<Option<i32>, Vec<u8>>);

impl Lines {
    /// The lines that are whole now. What is no line of ours is left out.
    pub(super) fn take(&mut self, rank: Option<i32>, data: &[u8]) -> Vec<Line> {
        let waiting = self.0.entry(rank).or_default();
        waiting.extend_from_slice(data);
        let Some(end) = waiting.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let whole: Vec<u8> = waiting.drain(..=end).collect();
        whole.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

/// A function of `probe_agent.capture` that runs in all processes. Dropped, it ends there.
#[derive(Debug)]
pub(super) struct Running<'a> {
    plan: &'a Plan,
    events: Events,
    lines: Lines,
    said: VecDeque<Line>,
}

impl<'a> Running<'a> {
    /// Calls it.
    ///
    /// # Errors
    /// It can't be called.
    pub(super) fn call(
        broker: &Arc<Broker>,
        plan: &'a Plan,
        caller: &Caller,
        (function, at): (&str, At),
    ) -> Result<Self> {
        let events = broker.ask(plan.snippet(function, at), &caller.asker.within("capture"), caller.over_tcp)?;
        Ok(Self { plan, events, lines: Lines::default(), said: VecDeque::new() })
    }

    /// The next thing that one of them says, with its place in the plan; None when all have said all.
    ///
    /// # Errors
    /// It failed somewhere, or one says why it does not begin or came to nothing.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Line)>> {
        loop {
            while let Some(line) = self.said.pop_front() {
                let processes = &self.plan.processes;
                let is_theirs = |process: &Arc<Identity>| process.pid == line.pid && *process.host == line.host;
                let Some(place) = processes.iter().position(is_theirs) else { continue };
                if let Some(problem) = &line.problem {
                    let what = format!("{}: {problem}", who(&processes[place]));
                    return Err(match line.late {
                        true => Error::limit(what).hint("allow more with --timeout, or capture fewer --steps"),
                        false => Error::failed(what),
                    });
                }
                return Ok(Some((place, line)));
            }
            let Some(event) = self.events.recv().await else {
                return Err(Error::failed("the processes went away"));
            };
            match event?.event {
                Some(Event::Output(output)) => {
                    let (rank, output) = (output.rank, output.output.unwrap_or_default());
                    if !output.stderr {
                        self.said.extend(self.lines.take(rank, &output.data));
                    }
                }
                Some(Event::Finished(finished)) => return ended(&finished).map(|()| None),
                _ => {}
            }
        }
    }
}

fn ended(finished: &Finished) -> Result<()> {
    let kind = match finished.outcome() {
        Outcome::Ok => return Ok(()),
        Outcome::Timeout | Outcome::NoBoundary => Kind::Limit,
        Outcome::Refused => Kind::Denied,
        _ => Kind::Failed,
    };
    let last = finished.error.lines().rev().find(|line| !line.trim().is_empty());
    let error = Error::new(kind, last.unwrap_or("the agent does not answer").trim());
    Err(if finished.hint.is_empty() { error } else { error.hint(&finished.hint) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_into_lines_by_rank() {
        let mut lines = Lines::default();
        assert!(lines.take(Some(0), br#"{"pid": 7, "#).is_empty());
        assert!(lines.take(Some(1), br#"{"pid": 8, "steps": 2"#).is_empty());
        let found = lines.take(Some(0), b"\"steps\": 1}\nno line of ours\n{\"pid\": 7, \"first\": 12}\n{");
        assert_eq!(
            found.iter().map(|line| (line.pid, line.steps, line.first)).collect::<Vec<_>>(),
            [(7, Some(1), None), (7, None, Some(12))]
        );
        assert_eq!(lines.take(Some(1), b"}\n")[0].steps, Some(2));
    }
}
