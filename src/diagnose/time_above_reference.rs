//! Judges whether a part of a rank's steps takes longer than its reference.

use std::collections::BTreeMap;

use serde_json::json;

use super::finding::Finding;
use super::replay::TimeReduction;
use super::rows::AnswerRows;
use super::rule::Rule;
use super::ruled_out::{NoFinding, RuleScore};
use super::statistics::{deviation, mean_interval, period};
use super::steps::{DiagnosedSteps, PARTS, Ticks, part, seconds, ticks};
use crate::block_bootstrap::median;

/// Judges the rows at `indices`, which are of one rank and subject, and adds what they say to `finding`.
///
/// # Errors
/// Why there is no finding.
pub(super) fn time(
    rule: &Rule,
    rows: &AnswerRows,
    indices: &[usize],
    (steps, at): (&DiagnosedSteps, &BTreeMap<i64, usize>),
    rank: Option<i64>,
    finding: &mut Finding,
) -> Result<(), NoFinding> {
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
        return Err(format!("{} steps are too few: the rule needs {}", all.len(), rule.least).into());
    }
    if let Some((column, least)) = &rule.gate {
        let values: Vec<f64> = all.iter().filter_map(|of| rows.number(column, of.row)).collect();
        let interval = mean_interval(&values, 3);
        let low = interval.map_or(f64::NEG_INFINITY, |(low, _)| low);
        if low < *least {
            let why = format!("{column} is at least {low:.2} with 95 % confidence, and the rule starts at {least}");
            let score = interval.map(|_| score(column, &values, interval, *least));
            return Err(NoFinding { why, score });
        }
    }
    let above: Vec<f64> = all.iter().map(|of| f64::from(u8::from(of.cost > of.reference))).collect();
    let interval = mean_interval(&above, 4);
    let low = interval.map_or(0.0, |(low, _)| low);
    if low < rule.persistence {
        let why = format!(
            "it exceeds its reference in at least {:.0} % of steps with 95 % confidence, and the rule starts at {:.0} %",
            low * 100.0,
            rule.persistence * 100.0
        );
        return Err(NoFinding { why, score: Some(score("persistence", &above, interval, rule.persistence)) });
    }
    let beyond = |finding: &mut Finding, expected: fn(&PartTime) -> f64| {
        let mut by = excess(rule, &all, expected, steps, process, finding)?;
        if rule.is_of_host() {
            within_slack(rule, &mut by, steps, process)?;
        }
        Ok::<_, NoFinding>(TimeReduction { part, process, by })
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
        finding.subject.entry("part".into()).or_insert_with(|| PARTS[part].to_owned());
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

/// The score of a mean of `values`.
fn score(of: &str, values: &[f64], interval: Option<(f64, f64)>, level: f64) -> RuleScore {
    let value = values.iter().sum::<f64>() / values.len().max(1) as f64;
    RuleScore { of: of.to_owned(), value, interval, level }
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
    steps: &DiagnosedSteps,
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
fn within_slack(rule: &Rule, by: &mut [Ticks], steps: &DiagnosedSteps, process: usize) -> Result<(), String> {
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
