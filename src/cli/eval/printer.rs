//! Prints the output of a snippet as it comes, and how the snippet ended.

use std::collections::HashMap;
use std::io::{self, Write};

use probe_common::error::{Error, Result};
use probe_proto::v1::{self, Outcome};
use serde_json::json;

use crate::cli::report;
use crate::cli::status::CommandStatus;
use crate::output;

/// A rank (None without a process group), and whether the stream is its standard error.
type RankStream = (Option<i32>, bool);

/// Writes a snippet's output and remembers what to say at its end.
pub(in crate::cli) struct SnippetPrinter {
    /// Whether events are written as JSON, an object a line.
    json: bool,
    /// Whether each line is labelled with its rank.
    labelled: bool,
    /// With labels: the unfinished line of each rank and stream.
    begun: HashMap<RankStream, Vec<u8>>,
    placement: v1::Placement,
    /// Steps that were finished when the snippet ran, as the first rank says; None while it has run nowhere.
    step: Option<i64>,
    /// Whether a traceback was shown.
    traceback: bool,
}

impl SnippetPrinter {
    pub(super) fn new(labelled: bool) -> Self {
        Self::with(labelled, false)
    }

    pub(super) fn with(labelled: bool, json: bool) -> Self {
        Self {
            json,
            labelled,
            begun: HashMap::new(),
            placement: v1::Placement::default(),
            step: None,
            traceback: false,
        }
    }

    pub(super) fn placed(&mut self, placement: v1::Placement) -> Result<()> {
        if self.json {
            line(&json!({ "event": "placed", "at": placement.at().as_str(), "ranks": placement.ranks }))?;
        }
        // The output of a single rank needs no label, even with --rank all.
        self.labelled &= placement.ranks.len() != 1;
        self.placement = placement;
        Ok(())
    }

    pub(in crate::cli) fn notice(notice: &v1::Notice) {
        report::note(&notice.text);
        if !notice.hint.is_empty() {
            report::hint(&notice.hint);
        }
    }

    pub(super) fn output(&mut self, rank: Option<i32>, output: v1::Output) -> Result<()> {
        if self.json {
            let text = String::from_utf8_lossy(&output.data);
            return line(&json!({ "event": "output", "rank": rank, "stderr": output.stderr, "text": text }));
        }
        let source = (rank, output.stderr);
        if !self.labelled {
            return write(output.stderr, &output.data);
        }
        // Only whole lines are written: ranks that print at once would share a line otherwise.
        let mut text = self.begun.remove(&source).unwrap_or_default();
        text.extend_from_slice(&output.data);
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let rest = text.split_off(whole);
        if !rest.is_empty() {
            self.begun.insert(source, rest);
        }
        write(output.stderr, &label(rank, &text))
    }

    pub(super) fn rank_done(&mut self, rank: Option<i32>, done: v1::Done) -> Result<()> {
        for stderr in [false, true] {
            if let Some(mut line) = self.begun.remove(&(rank, stderr)) {
                line.push(b'\n');
                write(stderr, &label(rank, &line))?;
            }
        }
        if matches!(done.outcome(), Outcome::Ok | Outcome::Error | Outcome::Timeout | Outcome::OutputLimit) {
            self.step.get_or_insert(done.step);
        }
        if self.json {
            self.traceback |= done.outcome() == Outcome::Error;
            let outcome = done.outcome().as_str();
            let error = done.error.trim_end();
            return line(
                &json!({ "event": "done", "rank": rank, "outcome": outcome, "step": done.step, "error": error }),
            );
        }
        if done.outcome() == Outcome::Error && !done.error.is_empty() {
            self.traceback = true;
            let text = format!("{}\n", done.error.trim_end()).into_bytes();
            write(true, &if self.labelled { label(rank, &text) } else { text })?;
        }
        Ok(())
    }

    pub(super) fn finished(mut self, finished: v1::Finished) -> Result<CommandStatus> {
        if self.json {
            line(&json!({
                "event": "finished",
                "outcome": finished.outcome().as_str(),
                "training_waited": finished.training_waited_s,
            }))?;
        }
        let ranks: Vec<Option<i32>> = self.begun.keys().map(|(rank, _)| *rank).collect();
        for rank in ranks {
            self.rank_done(rank, v1::Done::default())?;
        }
        if let Some(text) = self.between_steps(finished.training_waited_s).filter(|_| !self.json) {
            report::note(text);
        }
        match finished.outcome() {
            Outcome::Ok => Ok(0),
            Outcome::Error => {
                if !self.traceback {
                    write(true, format!("{}\n", finished.error.trim_end()).as_bytes())?;
                }
                if !finished.hint.is_empty() {
                    report::hint(&finished.hint);
                }
                Ok(1)
            }
            _ => Err(failure(&finished)),
        }
    }

    /// The boundary at which the snippet ran and what that cost; None where it ran beside training, or nowhere.
    fn between_steps(&self, waited: f64) -> Option<String> {
        if self.placement.at() != v1::At::Step {
            return None;
        }
        let boundary = boundary_text(self.step?);
        let ranks = match self.placement.ranks.len() {
            0 | 1 => String::new(),
            several => format!(" on {several} ranks"),
        };
        Some(format!("ran {boundary}{ranks}; training waited {waited:.2} s"))
    }
}

/// The step boundary at which a snippet ran, in words: `step` steps were finished, of which the first one is number 0.
pub(in crate::cli) fn boundary_text(step: i64) -> String {
    match step {
        ..=0 => "before step 0".to_owned(),
        step => format!("between steps {} and {step}", step - 1),
    }
}

/// The error of a snippet that neither ended well nor failed by an error of its own.
pub(in crate::cli) fn failure(finished: &v1::Finished) -> Error {
    let (make, otherwise): (fn(String) -> Error, _) = match finished.outcome() {
        Outcome::Timeout => (Error::limit, "the snippet did not end in time"),
        Outcome::OutputLimit => (Error::limit, "the snippet printed too much"),
        Outcome::NoBoundary => (Error::limit, "no step boundary came in time"),
        Outcome::Refused => (Error::denied, "the snippet was refused"),
        Outcome::Cancelled => (Error::failed, "the snippet was cancelled"),
        _ => (Error::failed, "the collector did not report how the snippet ended"),
    };
    let text = if finished.error.is_empty() { otherwise } else { finished.error.trim_end() };
    let error = make(text.to_owned());
    if finished.hint.is_empty() { error } else { error.hint(finished.hint.clone()) }
}

fn line(event: &serde_json::Value) -> Result<()> {
    write(false, format!("{event}\n").as_bytes())
}

/// Every line of `text` with its rank before it.
fn label(rank: Option<i32>, text: &[u8]) -> Vec<u8> {
    let label = rank.map_or_else(String::new, |rank| format!("[rank {rank}] "));
    let mut out = Vec::with_capacity(text.len() + label.len());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        out.extend_from_slice(label.as_bytes());
        out.extend_from_slice(line);
    }
    out
}

/// Writes at once: a snippet that prints its progress is being watched.
fn write(stderr: bool, text: &[u8]) -> Result<()> {
    if stderr {
        let _ = io::stderr().write_all(text);
        return Ok(());
    }
    let mut stdout = io::stdout();
    output::unless_closed(stdout.write_all(text).and_then(|()| stdout.flush())).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_common::error::ErrorKind;

    #[test]
    fn every_line_says_its_rank() {
        assert_eq!(label(Some(1), b"a\nb\n"), b"[rank 1] a\n[rank 1] b\n");
        assert_eq!(label(None, b"a"), b"a");
        assert_eq!(label(Some(1), b""), b"");
    }

    #[test]
    fn begun_lines_wait_for_their_end() {
        let mut printer = SnippetPrinter::new(true);
        printer.output(Some(0), v1::Output { stderr: true, data: b"half".to_vec().into() }).unwrap();
        assert_eq!(printer.begun[&(Some(0), true)], b"half");
        printer.output(Some(0), v1::Output { stderr: true, data: b" done\nnext".to_vec().into() }).unwrap();
        assert_eq!(printer.begun[&(Some(0), true)], b"next");
        printer.rank_done(Some(0), v1::Done::default()).unwrap();
        assert!(printer.begun.is_empty());
    }

    #[test]
    fn where_it_ran_is_said_in_step_numbers() {
        let mut printer = SnippetPrinter::new(false);
        assert_eq!(printer.between_steps(0.0), None);
        let placement = v1::Placement { at: v1::At::Step as i32, step: 813, ranks: vec![0, 1], ..Default::default() };
        printer.placed(placement).unwrap();
        assert_eq!(printer.between_steps(0.0), None, "it may never run");
        let mut done = |outcome: Outcome| {
            let done = v1::Done { step: 813, outcome: outcome as i32, ..Default::default() };
            printer.rank_done(None, done).unwrap();
            printer.between_steps(0.312)
        };
        assert_eq!(done(Outcome::NoBoundary), None, "it has not run");
        let note = done(Outcome::Ok).unwrap();
        assert_eq!(note, "ran between steps 812 and 813 on 2 ranks; training waited 0.31 s");
        printer.step = Some(0);
        assert_eq!(printer.between_steps(1.0).unwrap(), "ran before step 0 on 2 ranks; training waited 1.00 s");
    }

    #[test]
    fn outcomes_are_exit_statuses() {
        let finish = |outcome: Outcome| {
            let finished = v1::Finished {
                outcome: outcome as i32,
                error: "why".into(),
                hint: "so".into(),
                training_waited_s: 0.0,
            };
            SnippetPrinter::new(false).finished(finished).map_err(|error| error.kind())
        };
        assert_eq!(finish(Outcome::Ok), Ok(0));
        assert_eq!(finish(Outcome::Error), Ok(1));
        for outcome in [Outcome::Timeout, Outcome::OutputLimit, Outcome::NoBoundary] {
            assert_eq!(finish(outcome), Err(ErrorKind::Limit));
        }
        assert_eq!(finish(Outcome::Refused), Err(ErrorKind::Denied));
        assert_eq!(finish(Outcome::Cancelled), Err(ErrorKind::Failed));
    }
}
