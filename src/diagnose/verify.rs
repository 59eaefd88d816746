//! Whether a fix helped (`--verify`): which findings are gone, and the measured saving beside the promised one.

use std::fmt::Write;

use serde_json::{Value, json};

use super::diagnosis::Diagnosis;
use super::finding::{self, Finding, show};
use super::page::{head, title};
use super::ranking::{SavingRange, together};
use super::reference::ReferenceComparison;

/// The state of an earlier finding in the diagnosis after.
enum FindingFate {
    Gone,
    /// The index of the same finding in the diagnosis after.
    Still(usize),
    /// Why it is not decided.
    NotDecided(String),
}

/// Whether a promise was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromiseKept {
    AsPromised,
    More,
    Less,
    /// No finding that saves time is gone.
    NothingPromised,
    TooFewSteps,
}

impl PromiseKept {
    const fn as_str(self) -> &'static str {
        match self {
            Self::AsPromised => "as promised",
            Self::More => "more than promised",
            Self::Less => "less than promised",
            Self::NothingPromised => "nothing was promised",
            Self::TooFewSteps => "too few steps to tell",
        }
    }
}

/// A diagnosis before a fix compared with one after it.
pub(crate) struct Verification<'a> {
    before: &'a Diagnosis,
    after: &'a Diagnosis,
    against: &'a ReferenceComparison,
    fates: Vec<FindingFate>,
    /// Indices of findings that are new in the diagnosis after.
    new: Vec<usize>,
    /// The saving that all findings that are gone promised together.
    promised: Option<SavingRange>,
    kept: PromiseKept,
}

/// Compares the findings before and after. `after` was made against the steps of `before`.
pub(crate) fn verify<'a>(before: &'a Diagnosis, after: &'a Diagnosis) -> Option<Verification<'a>> {
    let against = after.against.as_ref()?;
    let mut new: Vec<usize> = (0..after.findings.len()).collect();
    let mut fates = Vec::new();
    for old in &before.findings {
        let still = new.iter().position(|index| is_the_same(old, &after.findings[*index]));
        let open = || after.not_decided.iter().find(|of| of.rule == old.rule);
        fates.push(match (still, open()) {
            (Some(at), _) => FindingFate::Still(new.remove(at)),
            (None, Some(of)) => FindingFate::NotDecided(of.why.clone()),
            (None, None) => FindingFate::Gone,
        });
    }
    let gone = before.findings.iter().zip(&fates).filter(|(_, fate)| matches!(fate, FindingFate::Gone));
    let reductions: Vec<_> = gone.flat_map(|(old, _)| &old.reductions).collect();
    let promised = (!reductions.is_empty()).then(|| together(&before.steps, &reductions));
    // A saving is a negative change, so the bounds of the interval swap.
    let measured = against.interval().map(|(low, high)| (-high, -low));
    let kept = match (promised, measured) {
        (None, _) => PromiseKept::NothingPromised,
        (_, None) => PromiseKept::TooFewSteps,
        (Some(promised), Some((_, high))) if high < promised.low => PromiseKept::Less,
        (Some(promised), Some((low, _))) if low > promised.high => PromiseKept::More,
        _ => PromiseKept::AsPromised,
    };
    Some(Verification { before, after, against, fates, new, promised, kept })
}

/// Whether two findings are of the same rule and subject. Lines do not count, since they move when a program is mended. They have
/// a rank in common.
fn is_the_same(old: &Finding, now: &Finding) -> bool {
    let subject = |of: &Finding| {
        of.subject
            .iter()
            .filter(|(name, _)| *name != "line")
            .map(|(name, of)| (name.clone(), of.clone()))
            .collect::<Vec<_>>()
    };
    let of_same_ranks = old.ranks == now.ranks
        || old.everywhere
        || now.everywhere
        || old.ranks.iter().any(|rank| now.ranks.contains(rank));
    old.rule == now.rule && subject(old) == subject(now) && of_same_ranks
}

impl Verification<'_> {
    fn verdict(&self) -> String {
        let gone = self.fates.iter().filter(|fate| matches!(fate, FindingFate::Gone)).count();
        let open = self.fates.iter().filter(|fate| matches!(fate, FindingFate::NotDecided(_))).count();
        let findings = match self.fates.len() {
            0 => "nothing stood out before".to_owned(),
            1 if gone == 1 => "what was found is gone".to_owned(),
            1 if open == 1 => "whether what was found is gone is not decided".to_owned(),
            1 => "what was found is still there".to_owned(),
            all => format!("{gone} of {all} findings {} gone", if gone == 1 { "is" } else { "are" }),
        };
        let change = self.against.change_ms();
        let word = if change < 0.0 { "less" } else { "more" };
        let measured = format!("a step takes {} ms {word} on average", show(change.abs()));
        let doubt = match self.against.is_busier_now() {
            _ if self.kept == PromiseKept::AsPromised => "",
            Some(true) => ", on a machine that was busier",
            Some(false) => ", on a machine that was less busy",
            None => "",
        };
        let promise = self.promised.map(|of| {
            let interval = finding::interval((of.low, of.high));
            format!(
                ", {} ms were promised ({:.0} %{interval} of a step): {}{doubt}",
                show(of.ms),
                of.percent,
                self.kept.as_str()
            )
        });
        format!("{findings}; {measured}{}", promise.unwrap_or_default())
    }

    pub(crate) fn page(&self, name: &str) -> String {
        let mut out = head(self.after, name);
        let _ = writeln!(out, "verdict: {}", self.verdict());
        for (old, fate) in self.before.findings.iter().zip(&self.fates) {
            let _ = writeln!(out, "\n  {:<11}  {}", fate.as_str(), title(old));
            let _ = writeln!(out, "      {}", old.says);
            match fate {
                FindingFate::Gone => (),
                FindingFate::Still(index) => {
                    let _ = writeln!(out, "      now: {}", title(&self.after.findings[*index]));
                }
                FindingFate::NotDecided(why) => {
                    let _ = writeln!(out, "      {why}");
                }
            }
        }
        for index in &self.new {
            let finding = &self.after.findings[*index];
            let _ = writeln!(
                out,
                "\n  {:<11}  {}\n      {}\n      do: {}",
                "new",
                title(finding),
                finding.says,
                finding.remedy
            );
        }
        out
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        let of = |(old, fate): (&Finding, &FindingFate)| {
            let now = match fate {
                FindingFate::Still(index) => self.after.findings[*index].json(),
                _ => Value::Null,
            };
            let why = match fate {
                FindingFate::NotDecided(why) => Some(why),
                _ => None,
            };
            json!({ "fate": fate.as_str(), "before": old.json(), "now": now, "why": why })
        };
        json!({
            "run": name,
            "verdict": self.verdict(),
            "kept": self.kept.as_str(),
            "promised": self.promised.map(|of| json!({ "ms": of.ms, "percent": of.percent, "low": of.low, "high": of.high })),
            "against": self.against.json(),
            "findings": self.before.findings.iter().zip(&self.fates).map(of).collect::<Vec<_>>(),
            "new": self.new.iter().map(|index| self.after.findings[*index].json()).collect::<Vec<_>>(),
        })
    }
}

impl FindingFate {
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Still(_) => "still there",
            Self::NotDecided(_) => "not decided",
        }
    }
}
