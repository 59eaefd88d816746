//! The diagnosis as people read it, and as programs do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::{Value, json as value};

use super::diagnosis::{Diagnosis, UndecidedRule};
use super::finding::{Finding, show};
use super::recording::RecordingCost;
use super::reference::ReferenceComparison;
use super::request::EvidenceRequest;
use super::ruled_out::RuledOut;
use super::steps::{DiagnosedSteps, PARTS, Ticks, UNACCOUNTED, seconds};
use super::verdict::verdict;
use super::waterfall::WaterfallRow;

fn ms(steps: &DiagnosedSteps, ticks: Ticks) -> f64 {
    seconds(ticks) * 1000.0 / steps.count().max(1) as f64
}

/// The head of a page: the steps that were looked at, how long they take, and what they are compared with.
pub(super) fn head(done: &Diagnosis, run: &str) -> String {
    let mut out = String::new();
    let steps = &done.steps;
    let are_ranks = steps.processes.iter().all(|process| process.rank.is_some());
    let who = match steps.processes.len() {
        1 => "1 process".to_owned(),
        count if are_ranks => format!("{count} ranks"),
        count => format!("{count} processes"),
    };
    if let (Some(first), Some(last)) = (steps.numbers.first(), steps.numbers.last()) {
        let _ = write!(out, "{run}: {} steps of {who} (step {first}..{last})", steps.count());
        let _ = write!(out, ", {} ms a step", show(ms(steps, done.total())));
    } else if steps.captures > 0 {
        let captures =
            if steps.captures == 1 { "1 capture".to_owned() } else { format!("{} captures", steps.captures) };
        let _ = write!(out, "{run}: {captures} of {who}; no agent recorded steps");
    } else {
        let _ = write!(out, "{run}: no steps of {who} after the warm-up");
    }
    let samples = steps.samples_per_second.filter(|rate| *rate > 0.0);
    let _ = write!(out, "{}", samples.map(|rate| format!(", {rate:.1} samples/s")).unwrap_or_default());
    let _ = writeln!(out, "{}", done.recording.map(|recording| format!("; {}", recording.text())).unwrap_or_default());
    if steps.others > 0 {
        let processes = if steps.others == 1 { "process" } else { "processes" };
        let _ = writeln!(out, "left out: {} {processes} without a rank; ask one by its pid", steps.others);
    }
    if let Some(why) = steps.shared.left_out() {
        let _ = writeln!(out, "{why}");
    }
    if let Some(against) = &done.against {
        out += &against.text();
    }
    out
}

/// One line of a finding: how bad, how sure, the rule, and what it would save.
pub(super) fn title(finding: &Finding) -> String {
    let saves = finding.saving.map(|saving| {
        let kind = finding.saving_kind.words();
        format!("  {kind}-{} ms  {:.0} % [{:.0}, {:.0}]", show(saving.ms), saving.percent, saving.low, saving.high)
    });
    let (severity, saves) = (finding.severity.as_str(), saves.unwrap_or_default());
    format!("{severity:<8}  {:<8}  {}{saves}", finding.confidence, finding.rule)
}

/// The page, with the first `top` findings. Causes that were ruled out or not decided are named where `lists_all`, and else counted.
pub(crate) fn page(done: &Diagnosis, run: &str, top: usize, lists_all: bool) -> String {
    let mut out = head(done, run);
    let _ = writeln!(out, "verdict: {}", verdict(done));
    for (index, finding) in done.findings.iter().enumerate().take(top) {
        let _ = writeln!(out, "\n  {:>2}  {}", index + 1, title(finding));
        let _ = writeln!(out, "      {}", finding.says);
        let _ = writeln!(out, "      do: {}", finding.remedy);
    }
    match done.findings.len().saturating_sub(top) {
        0 => {}
        1 => out += "\n1 more finding is left out by --top\n",
        more => out += &format!("\n{more} more findings are left out by --top\n"),
    }
    if done.steps.count() > 0 {
        out += &table_of_parts(done);
    }
    out += &if lists_all { other_causes(done) } else { counts_of_other_causes(done) };
    out
}

/// A line for each reason why these were not decided.
fn reasons<'a>(open: impl Iterator<Item = &'a UndecidedRule>) -> String {
    let line = |(rules, why, how): (Vec<&str>, String, &str)| {
        let how = if how.is_empty() { String::new() } else { format!(" ({how})") };
        format!("not decided: {}: {why}{how}\n", rules.join(", "))
    };
    undecided(open).into_iter().map(line).collect()
}

/// The causes without a finding, those with the same reason together and the smallest groups first, and why some could not be decided.
fn other_causes(done: &Diagnosis) -> String {
    let mut by_reason: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for of in done.ruled_out.iter().filter(|of| !done.has_finding(&of.rule)) {
        by_reason.entry(&of.why).or_default().insert(&of.rule);
    }
    let mut groups: Vec<(Vec<&str>, &str)> =
        by_reason.into_iter().map(|(why, rules)| (rules.into_iter().collect(), why)).collect();
    groups.sort_by(|(one, _), (other, _)| (one.len(), one).cmp(&(other.len(), other)));
    let lines: String =
        groups.into_iter().map(|(rules, why)| format!("ruled out: {}: {why}\n", rules.join(", "))).collect();
    let lead = if lines.is_empty() { "" } else { "\n" };
    format!("{lead}{lines}{}", reasons(done.not_decided.iter()))
}

/// How many causes have no finding, whose names are longer than the rest of the page, and what is not decided of a finding.
fn counts_of_other_causes(done: &Diagnosis) -> String {
    let (of_findings, others): (Vec<_>, Vec<_>) =
        done.not_decided.iter().partition(|open| done.has_finding(&open.rule));
    let (silent, open) = (done.rules_ruled_out().len(), others.len());
    let causes = |count: usize| if count == 1 { "1 cause".to_owned() } else { format!("{count} causes") };
    let counts = match (silent, open) {
        (0, 0) => String::new(),
        (silent, 0) => format!("\nruled out: {} (--all names them)\n", causes(silent)),
        (0, open) => format!("\nnot decided: {} (--all says which, and what they need)\n", causes(open)),
        (silent, open) => {
            let silent = causes(silent);
            format!("\nruled out: {silent}; not decided: {open} (--all says which, and what they need)\n")
        }
    };
    let lead = if counts.is_empty() && !of_findings.is_empty() { "\n" } else { "" };
    format!("{counts}{lead}{}", reasons(of_findings.into_iter()))
}

/// The table of where a step's time goes.
fn table_of_parts(done: &Diagnosis) -> String {
    let (steps, total) = (&done.steps, done.total());
    let mut out = String::new();
    let _ = writeln!(out, "\nwhere a step goes (ms)     typical   at times   share");
    for row in &done.waterfall {
        let whole = row.typical + row.excess;
        // The parts of a step are rounded one by one, so a few ticks are left over in most runs.
        if row.part == PARTS[UNACCOUNTED] && whole.abs() <= total / 2000 {
            continue;
        }
        // Zero has no sign on the page.
        let share = if total > 0 { (whole as f64 / total as f64 * 100.0).round() + 0.0 } else { 0.0 };
        let claimed = row.finding.map(|index| format!("   <- {}", index + 1)).unwrap_or_default();
        let is_rest = row.finding.is_none()
            && done.waterfall.iter().any(|other| other.part == row.part && other.finding.is_some());
        let name = match row.part {
            "uneven" => "uneven ranks".to_owned(),
            part if is_rest => format!("{part}, the rest"),
            part => part.to_owned(),
        };
        let (typical, excess) = (show(ms(steps, row.typical)), show(ms(steps, row.excess)));
        let _ = writeln!(out, "  {name:<22} {typical:>9} {excess:>10} {share:>5.0} %{claimed}");
    }
    let rows: Ticks = done.waterfall.iter().map(|row| row.typical + row.excess).sum();
    let (rows, whole) = (show(ms(steps, rows)), show(ms(steps, total)));
    let off = done.error * 100.0;
    let _ = writeln!(out, "  {:<22} {rows:>9}   of {whole} ms; the replay is off by {off:.1} %", "sum");
    let is_claimed = done.waterfall.iter().any(|row| row.finding.is_some());
    let claimed = if is_claimed { "; <- 1: what finding 1 explains" } else { "" };
    let _ = writeln!(
        out,
        "typical: the median of the steps; at times: by how much their mean is above it, or below (-){claimed}"
    );
    if let Some(share) = steps.device_busy_share() {
        let whose = if steps.processes.len() == 1 { "the GPU has" } else { "each GPU has" };
        let _ = writeln!(
            out,
            "{whose} work in at least {:.0} % of a step, which hides what the host does meanwhile",
            share * 100.0
        );
    }
    out
}

/// Groups the rules with the same reason, and those that lack columns of the same kind: the rules, the reason, and what would
/// record it. Otherwise a program without collectives would have a line for each rule about them.
fn undecided<'a>(all: impl Iterator<Item = &'a UndecidedRule>) -> Vec<(Vec<&'a str>, String, &'a str)> {
    const LACKING: &str = " is not recorded ";
    let mut groups: Vec<(Vec<&str>, Vec<&str>, &str, &str)> = Vec::new();
    for open in all {
        let (what, when) = open.why.split_once(LACKING).unwrap_or((&open.why, ""));
        let same = |(_, columns, end, how): &&mut (_, Vec<&str>, &str, &str)| {
            *end == when && *how == open.how && (!when.is_empty() || *columns == [what])
        };
        match groups.iter_mut().find(same) {
            Some((rules, columns, ..)) => {
                rules.push(&open.rule);
                if !columns.contains(&what) {
                    columns.push(what);
                }
            }
            None => groups.push((vec![&open.rule], vec![what], when, &open.how)),
        }
    }
    let joined = |(rules, columns, when, how): (Vec<_>, Vec<&str>, &str, _)| {
        let why = match columns.as_slice() {
            [why] if when.is_empty() => (*why).to_owned(),
            [column] => format!("{column}{LACKING}{when}"),
            several => format!("{} are not recorded {when}", several.join(", ")),
        };
        (rules, why, how)
    };
    groups.into_iter().map(joined).collect()
}

pub(crate) fn json(done: &Diagnosis, run: &str) -> Value {
    let steps = &done.steps;
    let total = done.total();
    let row = |row: &WaterfallRow| {
        value!({ "part": row.part, "leaf": if row.finding.is_some() { "claimed" } else { "not named" },
            "typical_ms": ms(steps, row.typical), "excess_ms": ms(steps, row.excess),
            "finding": row.finding.map(|index| index + 1) })
    };
    value!({
        "run": run,
        "window": { "first": steps.numbers.first(), "last": steps.numbers.last(), "steps": steps.count(),
            "ranks": steps.processes.len(), "captures": steps.captures, "warmup": steps.warming_up, "left_out": steps.left_out,
            "ranks_left_out": steps.shared.unknown, "earlier_processes": steps.shared.earlier },
        "step_ms": ms(steps, total),
        "gpu_busy_percent": steps.device_busy_share().map(|share| share * 100.0),
        "fits": done.fits(),
        "verdict": done.verdict().map(|finding| finding.says.clone()),
        "findings": done.findings.iter().map(Finding::json).collect::<Vec<_>>(),
        "waterfall": done.waterfall.iter().map(row).collect::<Vec<_>>(),
        "ruled_out": done.ruled_out.iter().map(RuledOut::json).collect::<Vec<_>>(),
        "not_decided": done.not_decided.iter()
            .map(|of| value!({ "rule": of.rule, "why": of.why, "how": of.how })).collect::<Vec<_>>(),
        "model_error": done.error,
        "asked": done.asked.as_ref().map(|asked| asked.iter().map(EvidenceRequest::json).collect::<Vec<_>>()),
        "against": done.against.as_ref().map(ReferenceComparison::json),
        "recording": done.recording.map(RecordingCost::json),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_with_the_same_reason_are_one_line() {
        let of =
            |rule: &str, why: &str, how: &str| UndecidedRule { rule: rule.into(), why: why.into(), how: how.into() };
        let lacks = |rule, column: &str, how| of(rule, &format!("{column} is not recorded in these steps"), how);
        let all = [
            lacks("barriers", "t.duration", "use it"),
            of("leaks", "4 rows are too few", "train longer"),
            lacks("small", "t.bytes", "use it"),
            lacks("workers", "d.wait", "load"),
            of("loads", "4 rows are too few", "train longer"),
            of("grows", "5 rows are too few", "train longer"),
        ];
        let line = |(rules, why, how): (Vec<&str>, String, &str)| format!("{}: {why} ({how})", rules.join(" "));
        let lines: Vec<String> = undecided(all.iter()).into_iter().map(line).collect();
        assert_eq!(
            lines,
            [
                "barriers small: t.duration, t.bytes are not recorded in these steps (use it)",
                "leaks loads: 4 rows are too few (train longer)",
                "workers: d.wait is not recorded in these steps (load)",
                "grows: 5 rows are too few (train longer)",
            ]
        );
    }
}
