//! The answer to a suspicion, as people read it and as programs do.

use std::fmt::Write;

use serde_json::{Value, json};

use super::super::diagnosis::Diagnosis;
use super::super::page::{head, title};
use super::candidate::{CauseVerdict, SuspectCandidate};

/// The answer about a suspected name.
pub(crate) struct SuspectAnswer<'a> {
    pub(super) done: &'a Diagnosis,
    pub(super) asked: String,
    pub(super) reasons: Vec<SuspectCandidate>,
}

impl SuspectAnswer<'_> {
    /// The name is a cause if anything that it may mean is.
    fn answer(&self) -> CauseVerdict {
        self.reasons.iter().map(|of| of.answer).max().unwrap_or(CauseVerdict::NotDecided)
    }

    pub(crate) fn page(&self, name: &str) -> String {
        let mut out = head(self.done, name);
        let _ = writeln!(out, "is it {}? {}", self.asked, self.answer().as_str());
        for of in &self.reasons {
            let _ = writeln!(out, "\n  {}: {} {}", of.answer.as_str(), of.kind, of.name.trim_start_matches(of.kind));
            for sentence in &of.why {
                let _ = writeln!(out, "      {sentence}");
            }
        }
        match self.done.findings.first() {
            None => out += "\nnothing else stands out\n",
            Some(first) if self.reasons.iter().all(|of| of.finding != Some(1)) => {
                let _ = writeln!(
                    out,
                    "\nwhat stands out: {}\n      {}\n      do: {}",
                    title(first),
                    first.says,
                    first.remedy
                );
            }
            Some(first) => {
                let _ = writeln!(out, "\ndo: {}", first.remedy);
            }
        }
        out
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        let of = |of: &SuspectCandidate| {
            json!({
                "kind": of.kind, "name": of.name, "answer": of.answer.as_str(), "why": of.why, "finding": of.finding,
                "share": of.share.map(|(percent, low, high)| json!({ "percent": percent, "low": low, "high": high })),
                "at_most": of.at_most
                    .map(|of| json!({ "ms": of.ms, "percent": of.percent, "low": of.low, "high": of.high })),
            })
        };
        json!({
            "run": name,
            "asked": self.asked,
            "answer": self.answer().as_str(),
            "reasons": self.reasons.iter().map(of).collect::<Vec<_>>(),
            "verdict": self.done.verdict().map(|of| of.says.clone()),
        })
    }
}
