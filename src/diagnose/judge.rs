//! Judges whether the rows of a rule stand out, rank by rank and subject by subject.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::finding::{Finding, Severity};
use super::replay::Reduction;
use super::rows::{AnswerRows, Column};
use super::rule::{Kind, Rule};
use super::statistics::{BLOCKS, deviation, floor, mean_interval, period, trend};
use super::steps::{Steps, Ticks, part, seconds, ticks};
use crate::block_bootstrap::median;

/// Columns that mean something to every rule; the others are facts.
const MEANT: [&str; 11] =
    ["step", "rank", "cost", "ref", "expected", "x", "y", "severity", "part", "undecided", "ruled_out"];
const SUBJECT: [&str; 5] = ["subject", "part", "module", "line", "seen"];

/// The findings of a rule, before their savings are known.
pub(crate) struct RuleFindings {
    pub(crate) findings: Vec<Finding>,
    /// Why there are no findings, or no more.
    pub(crate) why: String,
    /// Whether there are no findings because the rule could not decide: too few rows, or a row that says so.
    pub(crate) is_undecided: bool,
}

type Subject = BTreeMap<String, String>;
/// A rank and, where a rule takes several parts of a step together, the part.
type RankAndPart = (Option<i64>, Option<String>);

pub(crate) fn judge(rule: &Rule, rows: &AnswerRows, steps: &Steps) -> RuleFindings {
    let mut groups: BTreeMap<Subject, BTreeMap<RankAndPart, Vec<usize>>> = BTreeMap::new();
    for row in 0..rows.count {
        let of_subject = SUBJECT.iter().filter(|name| **name != "part" || !rule.all_parts);
        let subject = of_subject.filter_map(|name| Some(((*name).to_owned(), rows.text(name, row)?))).collect();
        let part = if rule.all_parts { rows.text("part", row) } else { None };
        groups.entry(subject).or_default().entry((rows.int("rank", row), part)).or_default().push(row);
    }
    let mut judged =
        RuleFindings { findings: Vec::new(), why: "no sign of it in these steps".into(), is_undecided: false };
    let at: BTreeMap<i64, usize> = steps.numbers.iter().enumerate().map(|(at, step)| (*step, at)).collect();
    let (mut most, mut is_open) = (0, false);
    for (subject, by_rank) in groups {
        let mut finding = empty(rule, subject);
        let mut cost = Vec::new();
        let mut told = Vec::new();
        for ((rank, _), indices) in by_rank {
            most = most.max(indices.len());
            if indices.len() < rule.least && rule.kind != Kind::Fact {
                continue;
            }
            if let Some(why) = rows.text("ruled_out", indices[0]) {
                judged.why = why;
                continue;
            }
            let judgement = match rule.kind {
                Kind::Time => time(rule, rows, &indices, (steps, &at), rank, &mut finding),
                Kind::Trend => growth(rule, rows, &indices, &mut finding),
                Kind::Fact => fact(rows, &indices, &mut finding),
            };
            is_open |= rule.kind == Kind::Fact && judgement.is_err();
            match judgement {
                Ok(of) => {
                    finding.ranks.extend(rank.filter(|rank| !finding.ranks.contains(rank)));
                    cost.push(of);
                    told.extend(indices);
                }
                Err(why) => judged.why = why,
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
        let has_too_few = rows.count > 0 && most < rule.least && rule.kind != Kind::Fact;
        if has_too_few {
            judged.why = format!("{most} rows are too few: the rule needs {}", rule.least);
        }
        judged.is_undecided = has_too_few || is_open;
    }
    judged
}

fn empty(rule: &Rule, subject: Subject) -> Finding {
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
            Column::Numbers(values) | Column::Flags(values) => {
                let known: Vec<f64> = indices.iter().filter_map(|row| values[*row]).collect();
                if known.is_empty() { Value::Null } else { json!(known.iter().sum::<f64>() / known.len() as f64) }
            }
            Column::Texts(values) => json!(indices.iter().find_map(|row| values[*row].clone())),
        };
        finding.facts.insert(name.clone(), value);
    }
}

fn time(
    rule: &Rule,
    rows: &AnswerRows,
    indices: &[usize],
    (steps, at): (&Steps, &BTreeMap<i64, usize>),
    rank: Option<i64>,
    finding: &mut Finding,
) -> Result<(), String> {
    let process = steps.process_of(rank).ok_or("a rank whose steps are not looked at")?;
    let name = rows.text("part", indices[0]).or_else(|| rule.part.clone());
    let part = name.as_deref().and_then(part).ok_or("its rows name no part of a step")?;
    let known = |row: &usize| {
        let (cost, reference) = (rows.number("cost", *row)?, rows.number("ref", *row)?);
        let expected = rows.number("expected", *row).unwrap_or(reference);
        Some(PartTime { step: *at.get(&rows.int("step", *row)?)?, cost, reference, expected, row: *row })
    };
    let mut all: Vec<PartTime> = indices.iter().filter_map(known).collect();
    all.sort_unstable_by_key(|of| of.step);
    if all.len() < rule.least {
        return Err(format!("{} steps are too few: the rule needs {}", all.len(), rule.least));
    }
    if let Some((column, least)) = &rule.gate {
        let values: Vec<f64> = all.iter().filter_map(|of| rows.number(column, of.row)).collect();
        let low = mean_interval(&values, 3).map_or(f64::NEG_INFINITY, |(low, _)| low);
        if low < *least {
            return Err(format!("{column} is at least {low:.2} with 95 % confidence, and the rule starts at {least}"));
        }
    }
    let above: Vec<f64> = all.iter().map(|of| f64::from(u8::from(of.cost > of.reference))).collect();
    let low = mean_interval(&above, 4).map_or(0.0, |(low, _)| low);
    if low < rule.persistence {
        return Err(format!(
            "it exceeds its reference in at least {:.0} % of steps with 95 % confidence, which is too few",
            low * 100.0
        ));
    }
    let beyond = |finding: &mut Finding, expected: fn(&PartTime) -> f64| {
        let mut by = excess(rule, &all, expected, steps, process, finding)?;
        if rule.is_of_host() {
            within_slack(rule, &mut by, steps, process)?;
        }
        Ok::<_, String>(Reduction { part, process, by })
    };
    let certain = beyond(finding, |of| of.reference)?;
    if rows.column("expected").is_some() {
        let promised = beyond(finding, |of| of.expected)?;
        finding.reductions.push(promised);
        finding.certain.push(certain);
    } else {
        finding.reductions.push(certain);
    }
    if !rule.all_parts {
        finding.subject.entry("part".into()).or_insert_with(|| super::steps::PARTS[part].to_owned());
    }
    let mean = |of: fn(&PartTime) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64 * 1000.0;
    // Costs in several parts of one rank add up; of several ranks only the last one is shown.
    let (cost, expected) = (mean(|of| of.cost), mean(|of| of.expected));
    let before =
        |of: Option<f64>| of.filter(|_| rule.all_parts && finding.ranks.last() == rank.as_ref()).unwrap_or(0.0);
    (finding.cost_ms, finding.ref_ms) = (Some(cost + before(finding.cost_ms)), Some(expected + before(finding.ref_ms)));
    finding.steps = all.len();
    finding.persistence = Some(above.iter().sum::<f64>() / above.len() as f64);
    Ok(())
}

/// The time (s) of a part in one step, which is the step at index `step`.
struct PartTime {
    step: usize,
    cost: f64,
    /// What the cost must exceed for a finding.
    reference: f64,
    /// What it would be where nothing is wrong.
    expected: f64,
    /// The index of the row that says it.
    row: usize,
}

/// The time that a part takes in each step beyond what `expected` returns. Stalls are noted as facts.
///
/// # Errors
/// The rule is about stalls, and there are none at equal distances.
fn excess(
    rule: &Rule,
    all: &[PartTime],
    expected: fn(&PartTime) -> f64,
    steps: &Steps,
    process: usize,
    finding: &mut Finding,
) -> Result<Vec<Ticks>, String> {
    let excess: Vec<f64> = all.iter().map(|of| of.cost - expected(of)).collect();
    let mut by = vec![0; steps.count()];
    if rule.typical {
        by.fill(ticks(median(excess).unwrap_or(0.0)).max(0));
        return Ok(by);
    }
    if !rule.periodic {
        for (of, excess) in all.iter().zip(&excess) {
            by[of.step] = ticks(*excess).max(0);
        }
        return Ok(by);
    }
    let whole: Vec<f64> = (0..steps.count()).map(|step| seconds(steps.duration(process, step))).collect();
    // Delays by other programs are smaller than the ones that come again and again: less than half of the fourth longest.
    let mut longest = excess.clone();
    longest.sort_unstable_by(|one, other| other.total_cmp(one));
    let fourth = longest.get(3).copied().unwrap_or(0.0);
    let level = (0.5 * median(whole).unwrap_or(0.0)).max(6.0 * deviation(&excess)).max(0.5 * fourth);
    let numbers: Vec<i64> = all.iter().map(|of| steps.numbers[of.step]).collect();
    let above = |level: f64| (0..all.len()).filter(|index| excess[*index] > level).collect::<Vec<usize>>();
    let period_of =
        |spikes: &[usize]| period(&spikes.iter().map(|index| numbers[*index]).collect::<Vec<_>>(), &numbers);
    // Stalls are not equally long: where some are below the level, all of them are above half of it.
    let tried = [level, level / 2.0].map(above);
    let found = tried.iter().find_map(|spikes| Some((period_of(spikes)?, spikes)));
    let (every, spikes) = found.ok_or_else(|| format!("{} long steps, not at equal distances", tried[0].len()))?;
    for index in spikes {
        by[all[*index].step] = ticks(excess[*index]);
    }
    let mean = spikes.iter().map(|index| excess[*index]).sum::<f64>() / spikes.len() as f64;
    finding.facts.insert("every".into(), json!(every));
    finding.facts.insert("stall".into(), json!(mean));
    finding.facts.insert("times".into(), json!(spikes.len()));
    Ok(by)
}

/// Takes from `by` the time in which the GPU has work meanwhile: steps do not get shorter by it.
///
/// # Errors
/// Hardly anything is left, though there was enough for a finding.
fn within_slack(rule: &Rule, by: &mut [Ticks], steps: &Steps, process: usize) -> Result<(), String> {
    let whole: Ticks = (0..steps.count()).map(|step| steps.duration(process, step)).sum();
    let is_enough = |by: &[Ticks]| by.iter().sum::<Ticks>() as f64 >= rule.levels[0] / 100.0 * whole as f64;
    let was_enough = is_enough(by);
    for (step, by) in by.iter_mut().enumerate() {
        *by = steps.device_slack(process, step).map_or(*by, |slack| slack.min(*by));
    }
    if !was_enough || is_enough(by) {
        return Ok(());
    }
    let share = steps.device_busy_share().unwrap_or_default();
    Err(format!(
        "the GPU has work in at least {:.0} % of a step, which hides what the host does meanwhile",
        share * 100.0
    ))
}

fn growth(rule: &Rule, rows: &AnswerRows, indices: &[usize], finding: &mut Finding) -> Result<(), String> {
    let point = |row: &usize| rows.number("x", *row).zip(rows.number("y", *row));
    let mut points: Vec<(f64, f64)> = indices.iter().filter_map(point).collect();
    points.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let found = trend(&points, floor).ok_or_else(|| format!("{} values are too few", points.len()))?;
    let percent = if found.first > 0.0 { (found.last / found.first - 1.0) * 100.0 } else { 0.0 };
    // Large growth is plain also where it falls back now and then.
    let is_rise = found.rises >= BLOCKS - 2 || found.tau >= 0.85 && percent >= 50.0;
    if !is_rise || !found.steady || percent < rule.growth {
        return Err(format!("{percent:+.1} %, higher in {} of {} parts", found.rises, BLOCKS - 1));
    }
    finding.severity = Severity::Warn;
    finding.steps = points.len();
    for (name, value) in [("slope", found.slope), ("first", found.first), ("last", found.last), ("percent", percent)] {
        finding.facts.insert(name.into(), json!(value));
    }
    Ok(())
}

/// A fact, unless its row says why the rule can't decide.
fn fact(rows: &AnswerRows, indices: &[usize], finding: &mut Finding) -> Result<(), String> {
    if let Some(why) = rows.text("undecided", indices[0]) {
        return Err(why);
    }
    // The worst of all ranks and rows.
    let known = |row: &usize| {
        let word = rows.text("severity", *row)?;
        Severity::ALL.into_iter().find(|known| known.as_str() == word)
    };
    finding.severity = indices.iter().filter_map(known).fold(finding.severity, Severity::max);
    Ok(())
}
