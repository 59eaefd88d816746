//! Orders findings, and computes the saving of each after those before it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::finding::{Finding, Saving, Severity, show};
use super::replay::{TimeReduction, replay};
use super::rule::{self, Rule};
use super::ruled_out::{RuleScore, RuledOut};
use super::statistics::ratio_interval;
use super::steps::{DiagnosedSteps, PARTS, Ticks, seconds};
use crate::block_bootstrap::BootstrapDraws;

/// A rule whose finding would save much on average, and in too few steps to be sure of it; and that in words.
type UncertainSaving = (String, String);

/// Orders findings: first the one that saves most with confidence, then the one that saves most of the remaining time, and so on;
/// then those that save no time, the worst first. One of these that explains a finding about time comes before it. Also returns the rules of candidates that are no findings after all, and of those
/// that may be one.
pub(super) fn rank(
    steps: &DiagnosedSteps,
    candidates: Vec<Finding>,
    rules: &BTreeMap<String, Rule>,
) -> (Vec<Finding>, Vec<RuledOut>, Vec<UncertainSaving>) {
    let replays = StepReplays::new(steps, rules);
    let (timed, others): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|of| !of.reductions.is_empty());
    let (timed, mut ruled_out) = replays.without_symptoms(timed);
    let (mut others, explained) = without_explained(others);
    ruled_out.extend(explained);
    let (mut found, rest) = replays.in_order(timed);
    let (uncertain, too_small): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(_, gain)| gain.may_matter);
    let after = if found.is_empty() { "" } else { " after those above" };
    ruled_out.extend(too_small.into_iter().map(|(of, gain)| replays.too_small(of, &gain, after)));
    let why = |gain: &MarginalSaving| {
        let saves = range(gain.percent, (gain.low, gain.high));
        format!("it would save {saves}{after}, which is too uncertain")
    };
    let uncertain = uncertain.into_iter().map(|(of, gain)| (of.rule, why(&gain))).collect();
    // That something took longer at a time says less than why.
    others.sort_by_key(|of| (Reverse(of.severity), of.family == "regression"));
    for finding in others {
        let symptom = found.iter().position(|of| !of.reductions.is_empty() && explains(&finding, of));
        found.insert(symptom.unwrap_or(found.len()), finding);
    }
    for finding in &mut found {
        (finding.says, finding.remedy) = (finding.text(&finding.says), finding.text(&finding.remedy));
    }
    (found, ruled_out, uncertain)
}

/// The most time that steps would save without some of their parts: milliseconds a step, and percent of a step with its 95 %
/// interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SavingRange {
    pub(crate) ms: f64,
    pub(crate) percent: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The saving of all `reductions` together.
pub(super) fn together(steps: &DiagnosedSteps, reductions: &[&TimeReduction]) -> SavingRange {
    let base = replay(steps, &[]);
    let gain: Vec<Ticks> = base.iter().zip(replay(steps, reductions)).map(|(now, then)| now - then).collect();
    let (sum, whole) = (gain.iter().sum::<Ticks>(), base.iter().sum::<Ticks>());
    let percent = if whole > 0 { sum as f64 / whole as f64 * 100.0 } else { 0.0 };
    let interval = ratio_interval(&BootstrapDraws::new(steps.count(), 5), &floats(&gain), &floats(&base));
    let (low, high) = interval.unwrap_or((0.0, 0.0));
    let ms = seconds(sum) / steps.count().max(1) as f64 * 1000.0;
    SavingRange { ms, percent, low: low * 100.0, high: high * 100.0 }
}

/// Replays of the steps without the causes of findings.
struct StepReplays<'a> {
    steps: &'a DiagnosedSteps,
    rules: &'a BTreeMap<String, Rule>,
    draws: BootstrapDraws,
    /// The duration (ticks) of each step in the replay without reductions.
    base: Vec<f64>,
    /// The sum of those durations.
    whole: Ticks,
}

/// The saving of a finding after others.
struct MarginalSaving {
    /// The saving in each step.
    by: Vec<f64>,
    sum: Ticks,
    /// The saving in percent of the steps.
    percent: f64,
    /// Lower bound of the saving, in percent of the steps, with 95 % confidence.
    low: f64,
    /// Upper bound of the saving, in percent of the steps, with 95 % confidence.
    high: f64,
    severity: Option<Severity>,
    /// Whether there is no severity only because the saving is uncertain: on average it would be worth a warning.
    may_matter: bool,
}

impl<'a> StepReplays<'a> {
    fn new(steps: &'a DiagnosedSteps, rules: &'a BTreeMap<String, Rule>) -> Self {
        let base = replay(steps, &[]);
        Self {
            steps,
            rules,
            draws: BootstrapDraws::new(steps.count(), 5),
            whole: base.iter().sum(),
            base: floats(&base),
        }
    }

    fn percent(&self, of: Ticks) -> f64 {
        if self.whole > 0 { of as f64 / self.whole as f64 * 100.0 } else { 0.0 }
    }

    fn seconds_a_step(&self, of: Ticks) -> f64 {
        seconds(of) / self.steps.count().max(1) as f64
    }

    /// Percent that `reductions` save without any other.
    fn alone(&self, reductions: &[TimeReduction]) -> f64 {
        let without: Ticks = replay(self.steps, &reductions.iter().collect::<Vec<_>>()).iter().sum();
        self.percent(self.whole - without)
    }

    /// The findings that no other finding explains nearly fully.
    fn without_symptoms(&self, timed: Vec<Finding>) -> (Vec<Finding>, Vec<RuledOut>) {
        let with_saving = |of: Finding| {
            let alone = self.alone(of.certain());
            (of, alone)
        };
        let timed: Vec<(Finding, f64)> = timed.into_iter().map(with_saving).collect();
        let cause = |of: &Finding, alone: f64| {
            let explains = |(other, saves): &&(Finding, f64)| *saves >= 0.8 * alone && is_cause(other, of);
            timed.iter().find(explains).filter(|_| alone > 0.0).map(|(other, _)| other.rule.clone())
        };
        let causes: Vec<Option<String>> = timed.iter().map(|(of, alone)| cause(of, *alone)).collect();
        let timed = timed.into_iter().map(|(of, _)| of).collect();
        without_caused(timed, causes)
    }

    /// Takes the best of the remaining findings until the rest save too little. Also returns the rest, with what each would save.
    fn in_order(&self, mut timed: Vec<Finding>) -> (Vec<Finding>, Vec<(Finding, MarginalSaving)>) {
        let mut found: Vec<Finding> = Vec::new();
        let mut before: Vec<TimeReduction> = Vec::new();
        loop {
            let now = replay(self.steps, &before.iter().collect::<Vec<_>>());
            let gains: Vec<MarginalSaving> = timed.iter().map(|of| self.gain(&now, &before, of)).collect();
            let mut best: Option<usize> = None;
            for (index, gain) in gains.iter().enumerate() {
                if gain.severity.is_some() && best.is_none_or(|best| gain.low > gains[best].low) {
                    best = Some(index);
                }
            }
            let Some(best) = best else {
                return (found, timed.into_iter().zip(gains).collect());
            };
            let index = more_exact(&timed, &gains, best);
            let (gain, mut finding) = (&gains[index], timed.remove(index));
            finding.severity = gain.severity.unwrap_or(Severity::Note);
            finding.saving = Some(Saving {
                ms: self.seconds_a_step(gain.sum) * 1000.0,
                percent: self.percent(gain.sum),
                low: gain.low,
                high: gain.high,
                alone: self.alone(&finding.reductions),
                after: self.seconds_a_step(now.iter().sum::<Ticks>() - gain.sum) * 1000.0,
            });
            before.extend(finding.reductions.iter().cloned());
            found.push(finding);
        }
    }

    /// The saving of a finding from steps that take `now` after the reductions `before` it.
    fn gain(&self, now: &[Ticks], before: &[TimeReduction], finding: &Finding) -> MarginalSaving {
        let rule = &self.rules[&finding.rule];
        let certain = self.saving(now, before, finding.certain(), rule);
        if finding.certain.is_empty() || certain.severity.is_none() {
            return certain;
        }
        MarginalSaving { severity: certain.severity, ..self.saving(now, before, &finding.reductions, rule) }
    }

    /// The 95 % interval of the sum of `by`, in percent of the steps.
    fn interval(&self, by: &[f64]) -> (f64, f64) {
        let interval = ratio_interval(&self.draws, by, &self.base);
        interval.map_or((0.0, 0.0), |(low, high)| (low * 100.0, high * 100.0))
    }

    /// The candidate of a rule that saves too little, with its saving and the level that it misses.
    fn too_small(&self, finding: Finding, gain: &MarginalSaving, after: &str) -> RuledOut {
        let level = self.rules[&finding.rule].levels[0];
        let (low, high) = self.interval(&gain.by);
        let score = RuleScore { of: "saving".into(), value: gain.percent, interval: Some((low, high)), level };
        let saves = if high < 0.05 { "0.0 %".to_owned() } else { range(gain.percent, (low, high)) };
        let why = if low >= level {
            let ms = show(self.seconds_a_step(gain.sum) * 1000.0);
            format!("it would save {saves}{after}, {ms} ms a step; a note takes 1 ms or 5 %")
        } else {
            format!("it would save {saves}{after}; a note takes {level} %")
        };
        RuledOut { rule: finding.rule, why, score: Some(score) }
    }

    fn saving(
        &self,
        now: &[Ticks],
        before: &[TimeReduction],
        reductions: &[TimeReduction],
        rule: &Rule,
    ) -> MarginalSaving {
        let with: Vec<&TimeReduction> = before.iter().chain(reductions).collect();
        let then = replay(self.steps, &with);
        let gain: Vec<Ticks> = now.iter().zip(&then).map(|(now, then)| now - then).collect();
        let (sum, by): (Ticks, _) = (gain.iter().sum(), floats(&gain));
        // What saves less on average is no finding, whatever its interval.
        let (low, high) = if self.percent(sum) >= rule.levels[0] { self.interval(&by) } else { (0.0, 0.0) };
        let matters = self.seconds_a_step(sum) >= 0.001 || self.percent(sum) >= 5.0;
        let (percent, severity) = (self.percent(sum), rule::severity(rule, low).filter(|_| matters));
        let may_matter = severity.is_none() && matters && percent >= rule.levels[1];
        MarginalSaving { by, sum, percent, low, high, severity, may_matter }
    }
}

/// The finding that names the cause of most of what the best one saves: it explains it, and saves at least half as much. What the
/// best one saves beyond that comes after it.
fn more_exact(timed: &[Finding], gains: &[MarginalSaving], best: usize) -> usize {
    let is_more_exact = |index: &usize| {
        let (of, gain) = (&timed[*index], &gains[*index]);
        gain.severity.is_some() && 2.0 * gain.low >= gains[best].low && is_cause(of, &timed[best])
    };
    let of_most = |one: &usize, other: &usize| gains[*one].low.total_cmp(&gains[*other].low);
    (0..timed.len()).filter(is_more_exact).max_by(of_most).unwrap_or(best)
}

/// Whether a finding without a saving explains another of the same ranks that is no worse.
fn explains(one: &Finding, other: &Finding) -> bool {
    one.explains.contains(&other.rule)
        && one.severity >= other.severity
        && (one.ranks.is_empty() || !other.ranks.is_empty() && other.ranks.iter().all(|rank| one.ranks.contains(rank)))
}

/// The findings without a saving that no other of them explains.
fn without_explained(findings: Vec<Finding>) -> (Vec<Finding>, Vec<RuledOut>) {
    let causes: Vec<Option<String>> = findings
        .iter()
        .map(|of| findings.iter().find(|other| explains(other, of)).map(|other| other.rule.clone()))
        .collect();
    without_caused(findings, causes)
}

/// Takes out the findings that have a cause, which is the name of another's rule.
fn without_caused(findings: Vec<Finding>, causes: Vec<Option<String>>) -> (Vec<Finding>, Vec<RuledOut>) {
    let (mut kept, mut ruled_out) = (Vec::new(), Vec::new());
    for (of, cause) in findings.into_iter().zip(causes) {
        match cause {
            Some(cause) => ruled_out.push(RuledOut { rule: of.rule, why: format!("{cause} explains it"), score: None }),
            None => kept.push(of),
        }
    }
    (kept, ruled_out)
}

/// Whether one finding about time can be the cause of another: its rule explains the other's, and both are about the same part.
fn is_cause(one: &Finding, other: &Finding) -> bool {
    one.explains.contains(&other.rule) && in_same_part(one, other)
}

/// Whether both take time from the same part of a process's steps. What a program does before and after it validates or saves is
/// in `other`.
fn in_same_part(one: &Finding, another: &Finding) -> bool {
    let place = |of: &TimeReduction| match PARTS[of.part] {
        "validation" | "checkpoint" => (of.process, "other"),
        part => (of.process, part),
    };
    one.reductions.iter().any(|of| another.reductions.iter().any(|reduction| place(reduction) == place(of)))
}

/// A percentage with its interval.
fn range(percent: f64, (low, high): (f64, f64)) -> String {
    format!("{percent:.1} % [{low:.1}, {high:.1}]")
}

fn floats(values: &[Ticks]) -> Vec<f64> {
    values.iter().map(|value| *value as f64).collect()
}
