//! Asks the processes of a capture, by snippets of probe, and reads their answers: lines of JSON.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use probe_common::error::{Error, ErrorKind, Result};
use probe_proto::v1::eval_event::Event;
use probe_proto::v1::{At, Finished, Outcome};
use probe_store::ProcessIdentity;
use serde::Deserialize;

use super::plan::{CapturePlan, process_name};
use crate::eval::{EvalEvents, SnippetBroker};
use crate::server::peer::Caller;

/// A line that a process prints about a capture.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ProgressLine {
    pub pid: i32,
    pub host: String,
    /// Why the capture does not begin in this process, or came to nothing.
    pub problem: Option<String>,
    /// Whether the deadline is the reason.
    pub late: bool,
    /// The step at which the capture begins.
    pub step: Option<i64>,
    /// Steps done so far.
    pub steps: Option<u32>,
    /// The first step of a capture that is over.
    pub first: Option<i64>,
    /// The duration of each step (s).
    pub seconds: Vec<f64>,
    /// How long training stood still (s).
    pub waited: f64,
    /// Path of the trace.
    pub file: Option<String>,
    /// What the process did otherwise than was asked, and why.
    pub note: Option<String>,
}

/// Output of processes, cut into lines.
#[derive(Debug, Default)]
pub(super) struct OutputLines(HashMap<Option<i32>, Vec<u8>>);

impl OutputLines {
    /// Adds output of a rank. Returns the lines that are complete now; other lines than those about a capture are left out.
    pub(super) fn add_output(&mut self, rank: Option<i32>, data: &[u8]) -> Vec<ProgressLine> {
        let waiting = self.0.entry(rank).or_default();
        waiting.extend_from_slice(data);
        let Some(end) = waiting.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let whole: Vec<u8> = waiting.drain(..=end).collect();
        whole.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

/// A function of `probe_agent.capture` that runs in all processes of a capture, and ends there when this is dropped.
#[derive(Debug)]
pub(super) struct RunningCapture<'a> {
    plan: &'a CapturePlan,
    events: EvalEvents,
    lines: OutputLines,
    queue: VecDeque<ProgressLine>,
}

impl<'a> RunningCapture<'a> {
    /// Calls `function` in all processes.
    ///
    /// # Errors
    /// The call is refused.
    pub(super) fn call(
        broker: &Arc<SnippetBroker>,
        plan: &'a CapturePlan,
        caller: &Caller,
        (function, at): (&str, At),
    ) -> Result<Self> {
        let events = broker.ask(plan.snippet(function, at), &caller.asker.within("capture"), caller.over_tcp)?;
        Ok(Self { plan, events, lines: OutputLines::default(), queue: VecDeque::new() })
    }

    /// The next line of a process, with the index of the process in the plan; None after the last line of all.
    ///
    /// # Errors
    /// The snippet failed in a process, or a process says why it does not begin or came to nothing.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, ProgressLine)>> {
        loop {
            while let Some(line) = self.queue.pop_front() {
                let processes = &self.plan.processes;
                let is_theirs = |process: &Arc<ProcessIdentity>| process.pid == line.pid && *process.host == line.host;
                let Some(index) = processes.iter().position(is_theirs) else { continue };
                if let Some(problem) = &line.problem {
                    let what = format!("{}: {problem}", process_name(&processes[index]));
                    return Err(match line.late {
                        true => Error::limit(what).hint("allow more with --timeout, or capture fewer --steps"),
                        false => Error::failed(what),
                    });
                }
                return Ok(Some((index, line)));
            }
            let Some(event) = self.events.recv().await else {
                return Err(Error::failed("the processes disconnected"));
            };
            match event?.event {
                Some(Event::Output(output)) => {
                    let (rank, output) = (output.rank, output.output.unwrap_or_default());
                    if !output.stderr {
                        self.queue.extend(self.lines.add_output(rank, &output.data));
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
        Outcome::Timeout | Outcome::NoBoundary => ErrorKind::Limit,
        Outcome::Refused => ErrorKind::Denied,
        _ => ErrorKind::Failed,
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
        let mut lines = OutputLines::default();
        assert!(lines.add_output(Some(0), br#"{"pid": 7, "#).is_empty());
        assert!(lines.add_output(Some(1), br#"{"pid": 8, "steps": 2"#).is_empty());
        let found = lines.add_output(Some(0), b"\"steps\": 1}\nno line of ours\n{\"pid\": 7, \"first\": 12}\n{");
        assert_eq!(
            found.iter().map(|line| (line.pid, line.steps, line.first)).collect::<Vec<_>>(),
            [(7, Some(1), None), (7, None, Some(12))]
        );
        assert_eq!(lines.add_output(Some(1), b"}\n")[0].steps, Some(2));
    }
}
