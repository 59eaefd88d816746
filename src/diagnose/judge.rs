//! Judges whether the rows of a rule stand out, rank by rank and subject by subject.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::finding::{Finding, Severity};
use super::rows::{AnswerRows, ColumnValues};
use super::rule::{Rule, RuleKind};
use super::ruled_out::{NoFinding, RuleScore};
use super::statistics::{BLOCKS, floor, trend};
use super::steps::DiagnosedSteps;
use super::time_above_reference::time;

/// Columns that mean something to every rule; the others are facts.
const MEANT: [&str; 11] =
    ["step", "rank", "cost", "ref", "expected", "x", "y", "severity", "part", "undecided", "ruled_out"];
const SUBJECT: [&str; 5] = ["subject", "part", "module", "line", "seen"];

/// The findings of a rule, before their savings are known.
pub(crate) struct RuleFindings {
    pub(crate) findings: Vec<Finding>,
    /// Why there are no findings, or no more.
    pub(crate) why: String,
    /// The number that decided so, of the rank or subject that came nearest.
    pub(crate) score: Option<RuleScore>,
    /// Whether there are no findings because the rule could not decide: too few rows, or a row that says so.
    pub(crate) is_undecided: bool,
}

type FindingSubject = BTreeMap<String, String>;
/// A rank and, where a rule takes several parts of a step together, the part.
type RankAndPart = (Option<i64>, Option<String>);

pub(crate) fn judge(rule: &Rule, rows: &AnswerRows, steps: &DiagnosedSteps) -> RuleFindings {
    let mut groups: BTreeMap<FindingSubject, BTreeMap<RankAndPart, Vec<usize>>> = BTreeMap::new();
    for row in 0..rows.count {
        let of_subject = SUBJECT.iter().filter(|name| **name != "part" || !rule.all_parts);
        let subject = of_subject.filter_map(|name| Some(((*name).to_owned(), rows.text(name, row)?))).collect();
        let part = if rule.all_parts { rows.text("part", row) } else { None };
        groups.entry(subject).or_default().entry((rows.int("rank", row), part)).or_default().push(row);
    }
    let why = "no sign of it in these steps".into();
    let mut judged = RuleFindings { findings: Vec::new(), why, score: None, is_undecided: false };
    let at: BTreeMap<i64, usize> = steps.numbers.iter().enumerate().map(|(at, step)| (*step, at)).collect();
    let (mut most, mut is_open) = (0, false);
    for (subject, by_rank) in groups {
        let mut finding = empty(rule, subject);
        let mut cost = Vec::new();
        let mut told = Vec::new();
        for ((rank, _), indices) in by_rank {
            most = most.max(indices.len());
            if indices.len() < rule.least && rule.kind != RuleKind::Fact {
                continue;
            }
            if let Some(why) = rows.text("ruled_out", indices[0]) {
                judged.miss(why.into());
                continue;
            }
            let judgement = match rule.kind {
                RuleKind::Time => time(rule, rows, &indices, (steps, &at), rank, &mut finding),
                RuleKind::Trend => growth(rule, rows, &indices, &mut finding),
                RuleKind::Fact => fact(rows, &indices, &mut finding),
            };
            is_open |= rule.kind == RuleKind::Fact && judgement.is_err();
            match judgement {
                Ok(of) => {
                    finding.ranks.extend(rank.filter(|rank| !finding.ranks.contains(rank)));
                    cost.push(of);
                    told.extend(indices);
                }
                Err(missed) => judged.miss(missed),
            }
        }
        if cost.is_empty() {
            continue;
        }
        facts(rows, &told, &mut finding);
        finding.everywhere = finding.ranks.len() > 1 && finding.ranks.len() == steps.processes.len();
        judged.findings.push(finding);
    }
    if judged.findings.is_empty() {
        let has_too_few = rows.count > 0 && most < rule.least && rule.kind != RuleKind::Fact;
        if has_too_few {
            judged.miss(format!("{most} rows are too few: the rule needs {}", rule.least).into());
        }
        judged.is_undecided = has_too_few || is_open;
    }
    judged
}

impl RuleFindings {
    /// Notes why a rank has no finding. Of several the last one counts, but for one that is farther from its level.
    fn miss(&mut self, NoFinding { why, score }: NoFinding) {
        let is_farther = score.as_ref().zip(self.score.as_ref()).is_some_and(|(new, old)| new.is_farther(old));
        if !is_farther {
            (self.why, self.score) = (why, score);
        }
    }
}

fn empty(rule: &Rule, subject: FindingSubject) -> Finding {
    Finding {
        rule: rule.name.clone(),
        family: rule.family.clone(),
        confidence: rule.confidence.clone(),
        severity: Severity::Note,
        ranks: Vec::new(),
        everywhere: false,
        subject,
        sampled: None,
        cost_ms: None,
        ref_ms: None,
        saving: None,
        saving_kind: rule.saving,
        steps: 0,
        persistence: None,
        facts: BTreeMap::new(),
        says: rule.says.clone(),
        remedy: rule.remedy.clone(),
        explains: rule.explains.clone(),
        sql: String::new(),
        reductions: Vec::new(),
        certain: Vec::new(),
    }
}

/// Adds the other columns of the rows at `indices`, of all ranks that the finding is about, as facts: the mean of numbers, the
/// first of texts.
fn facts(rows: &AnswerRows, indices: &[usize], finding: &mut Finding) {
    for (name, column) in rows.columns.iter().filter(|(name, _)| !MEANT.contains(&name.as_str())) {
        if SUBJECT.contains(&name.as_str()) {
            continue;
        }
        let value = match column {
            ColumnValues::Numbers(values) | ColumnValues::Flags(values) => {
                let known: Vec<f64> = indices.iter().filter_map(|row| values[*row]).collect();
                if known.is_empty() { Value::Null } else { json!(known.iter().sum::<f64>() / known.len() as f64) }
            }
            ColumnValues::Texts(values) => json!(indices.iter().find_map(|row| values[*row].clone())),
        };
        finding.facts.insert(name.clone(), value);
    }
}

fn growth(rule: &Rule, rows: &AnswerRows, indices: &[usize], finding: &mut Finding) -> Result<(), NoFinding> {
    let point = |row: &usize| rows.number("x", *row).zip(rows.number("y", *row));
    let mut points: Vec<(f64, f64)> = indices.iter().filter_map(point).collect();
    points.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let found = trend(&points, floor).ok_or_else(|| format!("{} values are too few", points.len()))?;
    let percent = if found.first > 0.0 { (found.last / found.first - 1.0) * 100.0 } else { 0.0 };
    // Large growth is plain also where it falls back now and then.
    let is_rise = found.rises >= BLOCKS - 2 || found.tau >= 0.85 && percent >= 50.0;
    if !is_rise || !found.steady || percent < rule.growth {
        let (rises, parts, level) = (found.rises, BLOCKS - 1, rule.growth);
        let why = format!(
            "{percent:+.1} %, higher in {rises} of {parts} parts; it takes {level} %, steadily and in {} parts",
            BLOCKS - 2
        );
        let score = RuleScore { of: "growth".into(), value: percent, interval: None, level };
        return Err(NoFinding { why, score: Some(score) });
    }
    finding.severity = Severity::Warn;
    finding.steps = points.len();
    for (name, value) in [("slope", found.slope), ("first", found.first), ("last", found.last), ("percent", percent)] {
        finding.facts.insert(name.into(), json!(value));
    }
    Ok(())
}

/// A fact, unless its row says why the rule can't decide.
fn fact(rows: &AnswerRows, indices: &[usize], finding: &mut Finding) -> Result<(), NoFinding> {
    if let Some(why) = rows.text("undecided", indices[0]) {
        return Err(why.into());
    }
    // The worst of all ranks and rows.
    let known = |row: &usize| {
        let word = rows.text("severity", *row)?;
        Severity::ALL.into_iter().find(|known| known.as_str() == word)
    };
    finding.severity = indices.iter().filter_map(known).fold(finding.severity, Severity::max);
    Ok(())
}
