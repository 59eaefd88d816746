//! A finding: something that stands out in a run.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::line::SampledLine;
use super::replay::TimeReduction;
use super::steps::part_in_words;

/// Milliseconds with three significant digits.
pub(crate) fn show(ms: f64) -> String {
    match ms.abs() {
        100.0.. => format!("{ms:.0}"),
        10.0..100.0 => format!("{ms:.1}"),
        // A value that rounds to zero is shown without a sign.
        0.0..0.005 => "0.00".to_owned(),
        _ => format!("{ms:.2}"),
    }
}

/// An interval in percent, to follow its middle value.
pub(crate) fn interval((low, high): (f64, f64)) -> String {
    format!(" [{low:.0}, {high:.0}]")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Severity {
    Note,
    Warn,
    Critical,
}

impl Severity {
    /// All severities, from the mildest on.
    pub(crate) const ALL: [Self; 3] = [Self::Note, Self::Warn, Self::Critical];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Critical => "critical",
        }
    }
}

/// What the saving of a rule's findings means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavingKind {
    /// Without the cause, the steps would take so much less.
    Replay,
    /// They would take so much less at most.
    Ceiling,
    /// They would take about so much less: the reference is rough, or what follows from the cause in other parts is not counted.
    Estimate,
}

impl SavingKind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Ceiling => "ceiling",
            Self::Estimate => "estimate",
        }
    }

    /// What the page says before the saving.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Replay => "",
            Self::Ceiling => "at most ",
            Self::Estimate => "about ",
        }
    }
}

/// The saving of a finding: milliseconds a step, and percent of a step with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Saving {
    pub(crate) ms: f64,
    pub(crate) percent: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Percent of a step if only this finding is mended; the other values are savings after the findings above it.
    pub(crate) alone: f64,
    /// Milliseconds that a step takes afterwards.
    pub(crate) after: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) rule: String,
    pub(crate) family: String,
    pub(crate) confidence: String,
    pub(crate) severity: Severity,
    pub(crate) ranks: Vec<i64>,
    /// Whether `ranks` are all ranks of the run.
    pub(crate) everywhere: bool,
    /// The subject by the rule's columns: subject, module, line, part, seen.
    pub(crate) subject: BTreeMap<String, String>,
    /// The line in which the time of the finding is spent, by samples of the stack. It is no part of the subject by which
    /// findings of two diagnoses are the same one: other samples may show another line.
    pub(crate) sampled: Option<SampledLine>,
    pub(crate) cost_ms: Option<f64>,
    pub(crate) ref_ms: Option<f64>,
    pub(crate) saving: Option<Saving>,
    pub(crate) saving_kind: SavingKind,
    pub(crate) steps: usize,
    pub(crate) persistence: Option<f64>,
    pub(crate) facts: BTreeMap<String, Value>,
    pub(crate) says: String,
    pub(crate) remedy: String,
    pub(crate) explains: Vec<String>,
    pub(crate) sql: String,
    /// The time that it takes beyond what is expected, by part and process.
    pub(crate) reductions: Vec<TimeReduction>,
    /// The time by which it stands out, if that is less: the severity follows from it. Otherwise empty.
    pub(crate) certain: Vec<TimeReduction>,
}

impl Finding {
    /// The time from which the severity follows.
    pub(crate) fn certain(&self) -> &[TimeReduction] {
        if self.certain.is_empty() { &self.reductions } else { &self.certain }
    }

    /// Whether the finding is worth a verdict, or an event: more than a note, and more than possible.
    pub(crate) fn is_warning(&self) -> bool {
        self.severity >= Severity::Warn && self.confidence != "possible"
    }

    /// The ranks in words: "rank 1", "ranks 1, 2", "every rank"; "the process" where there are no ranks.
    pub(crate) fn who(&self) -> String {
        let list = || self.ranks.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        match self.ranks.len() {
            0 => "the process".into(),
            1 if !self.everywhere => format!("rank {}", list()),
            _ if self.everywhere => "every rank".into(),
            _ => format!("ranks {}", list()),
        }
    }

    /// A text of the rule with {NAME} replaced by values of the finding. Its part is in words.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut out = text.replace("{who}", &self.who());
        let in_words = |name: &str, value| if name.starts_with("part") { part_in_words(value) } else { value };
        for (name, value) in self.subject.iter() {
            out = out.replace(&format!("{{{name}}}"), in_words(name, value));
        }
        for (name, value) in &self.facts {
            let number = value.as_f64();
            let plain = number.map_or_else(
                || in_words(name, value.as_str().unwrap_or_default()).to_owned(),
                |value| {
                    if value.abs() >= 100.0 || value.fract() == 0.0 {
                        format!("{value:.0}")
                    } else {
                        format!("{value:.2}")
                    }
                },
            );
            out = out.replace(&format!("{{{name}}}"), &plain);
            let number = number.unwrap_or_default();
            out = out.replace(&format!("{{{name}:%}}"), &format!("{:.0} %", number * 100.0));
            out = out.replace(&format!("{{{name}:ms}}"), &format!("{:.1} ms", number * 1000.0));
        }
        out
    }

    pub(crate) fn json(&self) -> Value {
        let rank = if self.ranks.len() == 1 { json!(self.ranks[0]) } else { Value::Null };
        let mut subject = json!({ "rank": rank, "ranks": self.ranks, "module": null, "line": null });
        for (name, value) in &self.subject {
            subject[name] = json!(value);
        }
        if let Some(line) = self.sampled.as_ref().filter(|line| line.is_alone() && subject["line"].is_null()) {
            subject["line"] = json!(line.line());
        }
        let saving = self.saving.map_or_else(
            || json!({ "kind": "none" }),
            |of| {
                let kind = self.saving_kind.as_str();
                json!({ "ms": of.ms, "percent": of.percent, "low": of.low, "high": of.high, "alone": of.alone,
                        "after": of.after, "kind": kind })
            },
        );
        json!({
            "rule": self.rule, "family": self.family, "severity": self.severity.as_str(), "confidence": self.confidence,
            "subject": subject, "sampled": self.sampled.as_ref().map(SampledLine::json), "cost_ms": self.cost_ms, "ref_ms": self.ref_ms, "saving": saving, "steps": self.steps,
            "persistence": self.persistence, "facts": self.facts, "says": self.says, "remedy": self.remedy, "sql": self.sql,
        })
    }
}
