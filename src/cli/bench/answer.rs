//! The output of the training process for a timing: lines that the expressions print, and one line of JSON.

use std::io::{self, Write};

use probe_common::error::{Error, Result};
use probe_proto::v1::{self, Outcome};
use serde::Deserialize;

use crate::cli::eval::printer::failure;
use crate::output;

/// How one thing was timed.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Timing {
    /// Index of the expression.
    pub(super) index: usize,
    /// Part of a module that was timed: forward; forward and backward. Empty for an expression.
    pub(super) part: String,
    /// Inputs that a module was called with, in words.
    pub(super) inputs: String,
    /// Seconds a call, in the order in which they were taken.
    pub(super) samples: Vec<f64>,
    pub(super) calls_per_sample: u64,
    pub(super) warm_up_calls: u64,
    /// Whether calls had stopped getting faster before the samples.
    pub(super) is_settled: bool,
}

/// Training's state, kept while expressions are timed.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct SavedState {
    pub(super) tensors: u64,
    pub(super) bytes: u64,
    /// How long keeping it took (s).
    pub(super) seconds: f64,
    /// Tensors that had changed and were put back.
    pub(super) put_back: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct TimedExpressions {
    pub(super) timings: Vec<Timing>,
    pub(super) kept: SavedState,
    /// torch.get_num_threads().
    pub(super) threads: u64,
    /// What makes a time mean less than it seems to.
    pub(super) remarks: Vec<String>,
}

/// The answer of the process.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum BenchAnswer {
    Refused {
        error: String,
        hint: String,
    },
    /// A module has to be called by training first.
    Watching {
        #[expect(dead_code, reason = "its presence is what tells")]
        watching: u64,
    },
    Timed(TimedExpressions),
}

#[derive(Debug)]
pub(super) struct Evaluation {
    pub(super) answer: BenchAnswer,
    pub(super) rank: Option<i32>,
    /// Steps that were finished.
    pub(super) step: i64,
    /// How long training waited (s).
    pub(super) waited: f64,
}

/// What the process has printed by now.
#[derive(Debug, Default)]
pub(super) struct SnippetOutput {
    stdout: Vec<u8>,
    traceback: bool,
}

impl SnippetOutput {
    /// Adds output. Standard error is passed on at once.
    pub(super) fn add_output(&mut self, output: &v1::Output) {
        if output.stderr {
            let _ = io::stderr().write_all(&output.data);
        } else {
            self.stdout.extend_from_slice(&output.data);
        }
    }

    /// Shows what the expression raised.
    pub(super) fn raised(&mut self, done: &v1::Done) {
        if done.outcome() == Outcome::Error && !done.error.is_empty() {
            self.traceback = true;
            let _ = writeln!(io::stderr(), "{}", done.error.trim_end());
        }
    }

    /// The answer, which is the last line; those before it are the expressions' own. None where they raised something.
    pub(super) fn finish(self, finished: &v1::Finished, rank: Option<i32>, step: i64) -> Result<Option<Evaluation>> {
        let text = String::from_utf8_lossy(&self.stdout);
        let (before, last) = text.trim_end().rsplit_once('\n').map_or(("", text.trim_end()), |(a, b)| (a, b));
        let answer = serde_json::from_str(last);
        let printed = if answer.is_ok() { before } else { text.trim_end() };
        if !printed.is_empty() {
            output::unless_closed(writeln!(io::stderr(), "{printed}"))?;
        }
        match finished.outcome() {
            Outcome::Ok => {}
            Outcome::Error => {
                if !self.traceback {
                    let _ = writeln!(io::stderr(), "{}", finished.error.trim_end());
                }
                return Ok(None);
            }
            Outcome::NoBoundary => {
                return Err(failure(finished).hint("--timeout waits longer for the step to end"));
            }
            _ => return Err(failure(finished)),
        }
        match answer {
            Ok(BenchAnswer::Refused { error, hint }) => {
                let error = Error::failed(error);
                Err(if hint.is_empty() { error } else { error.hint(hint) })
            }
            Ok(answer) => Ok(Some(Evaluation { answer, rank, step, waited: finished.training_waited_s })),
            Err(_) => Err(Error::failed("the process did not report its measurement")
                .hint("training has to be started with the wheel of this probe")),
        }
    }
}
