//! Modules that are suspected, by name or type: BatchNorm, attention, layers.3.

use std::collections::{BTreeMap, BTreeSet};

use super::super::diagnosis::Diagnosis;
use super::super::finding::show;
use super::super::rows::ask;
use super::super::statistics::ratio_interval;
use super::super::steps::{Ticks, part, ticks};
use super::candidate::{CauseVerdict, SuspectCandidate, first_finding, normalized_name, sentence, unnamed, without};
use crate::block_bootstrap::BootstrapDraws;
use probe_client::Client;
use probe_common::error::Result;

/// The fewest steps with detail for which a share is computed.
const MIN_NAMES: usize = 3;
/// The most modules whose names are listed.
const NAMES: usize = 4;

/// Seconds of a module in one stage of one step: with what it calls, and without.
struct ModuleSeconds {
    module: String,
    kind: String,
    is_backward: bool,
    step: i64,
    total: f64,
    own: f64,
}

/// `in_parts`: whether the name may be a part of a module's or type's name.
pub(super) async fn judge(
    client: &mut Client,
    done: &Diagnosis,
    name: &str,
    in_parts: bool,
    known: &mut BTreeSet<String>,
) -> Result<Option<SuspectCandidate>> {
    let sql = "SELECT module, module_type, stage IN ('backward', 'recompute') AS is_backward, step, \
               SUM(total_duration) AS total, SUM(duration) AS own FROM python.torch_trace WHERE $window AND module IS NOT \
               NULL AND stage IN ('forward', 'backward', 'recompute') AND total_duration IS NOT NULL \
               GROUP BY module, module_type, is_backward, step";
    let rows = ask(client, &done.steps.fill(sql)).await?;
    let in_window: BTreeSet<i64> = done.steps.numbers.iter().copied().collect();
    let row = |at: usize| {
        Some(ModuleSeconds {
            module: rows.text("module", at)?,
            kind: rows.text("module_type", at).unwrap_or_default(),
            is_backward: rows.number("is_backward", at) == Some(1.0),
            step: rows.int("step", at).filter(|step| in_window.contains(step))?,
            total: rows.number("total", at)?,
            own: rows.number("own", at)?,
        })
    };
    let all: Vec<ModuleSeconds> = (0..rows.count).filter_map(row).collect();
    known.extend(all.iter().flat_map(|of| [of.module.clone(), of.kind.clone()]));
    if !all.is_empty() {
        known.insert("module ".into());
    }
    let asked = normalized_name(name);
    let is_whole = |of: &ModuleSeconds| normalized_name(&of.module) == asked || normalized_name(&of.kind) == asked;
    let is_part = |of: &ModuleSeconds| in_parts && (is(&of.module, &asked) || is_kind(&of.kind, &asked));
    let is_asked = |of: &ModuleSeconds| !asked.is_empty() && (is_whole(of) || is_part(of));
    let meant: BTreeSet<&str> = all.iter().filter(|of| is_asked(of)).map(|of| of.module.as_str()).collect();
    if meant.is_empty() {
        return Ok(None);
    }
    let mut reason = of(done, &all, &meant, name);
    let at = 1.min(reason.why.len());
    reason.why.splice(at..at, conditions(client, done).await);
    Ok(Some(reason))
}

/// The conditions of the answer in words: the same module may be slow with a batch of four and not with one of forty.
async fn conditions(client: &mut Client, done: &Diagnosis) -> Option<String> {
    let sql = "SELECT batch_shape, parameter_dtype, autocast, autocast_dtype FROM python.environment WHERE pid IN ($pids) \
               AND model IS NOT NULL ORDER BY ts DESC LIMIT 1";
    let rows = ask(client, &done.steps.fill(sql)).await.ok()?;
    let mut known = Vec::new();
    known.extend(rows.text("batch_shape", 0).map(|shape| format!("the newest batch is {shape}")));
    known.extend(rows.text("parameter_dtype", 0).map(|kind| format!("parameters are {kind}")));
    known.extend(rows.text("autocast", 0).map(|on| match rows.text("autocast_dtype", 0) {
        Some(kind) if on == "true" => format!("autocast is {kind}"),
        _ => "autocast is off".to_owned(),
    }));
    (!known.is_empty()).then(|| known.join("; "))
}

/// Whether the asked name is the module's, or is in a part of it.
fn is(module: &str, asked: &str) -> bool {
    module.split('.').any(|part| normalized_name(part).contains(asked))
}

/// Whether the asked name is in the type's name, or is its capitals (BN for BatchNorm2d).
fn is_kind(kind: &str, asked: &str) -> bool {
    let capitals: String = kind.chars().filter(char::is_ascii_uppercase).collect();
    normalized_name(kind).contains(asked) || (capitals.len() >= 2 && capitals.to_ascii_lowercase() == asked)
}

fn of(done: &Diagnosis, all: &[ModuleSeconds], meant: &BTreeSet<&str>, name: &str) -> SuspectCandidate {
    // A matching module inside another match is already counted there.
    let outermost = |module: &str| {
        let mut above = module;
        while let Some((parent, _)) = above.rsplit_once('.') {
            if meant.contains(parent) {
                return false;
            }
            above = parent;
        }
        true
    };
    let chosen: BTreeSet<&str> = meant.iter().copied().filter(|module| outermost(module)).collect();
    let mut by_step: BTreeMap<i64, [f64; 2]> = all.iter().map(|of| (of.step, [0.0; 2])).collect();
    for of in all.iter().filter(|of| chosen.contains(of.module.as_str())) {
        if let Some(sums) = by_step.get_mut(&of.step) {
            sums[usize::from(of.is_backward)] += of.total;
        }
    }
    let steps = &done.steps;
    let whole = |step: &i64| {
        let at = steps.numbers.iter().position(|number| number == step)?;
        Some((0..steps.processes.len()).map(|process| steps.duration(process, at)).sum::<Ticks>())
    };
    let watched = by_step.len();
    let names = write_out(&chosen, all);
    if watched < MIN_NAMES {
        let why = format!("{names}: {watched} steps with detail are too few (probe config detail=every-step)");
        return SuspectCandidate::of("module", name, CauseVerdict::NotDecided, vec![why]);
    }
    let took: Vec<f64> =
        by_step.values().map(|sums| (sums[0] + sums[1]) * super::super::steps::TICKS_IN_SECOND).collect();
    let durations: Vec<f64> = by_step.keys().map(|step| whole(step).unwrap_or(0) as f64).collect();
    let percent = took.iter().sum::<f64>() / durations.iter().sum::<f64>().max(1.0) * 100.0;
    let interval = ratio_interval(&BootstrapDraws::new(watched, 9), &took, &durations).unwrap_or((0.0, 0.0));
    let share = (percent, interval.0 * 100.0, interval.1 * 100.0);
    // Means are for each step and process.
    let count = (watched * steps.processes.len()) as f64;
    let mean = |of: usize| by_step.values().map(|sums| sums[of]).sum::<f64>() / count;
    let (forward, backward) = (mean(0), mean(1));
    let mut why = vec![format!(
        "{names} {} {:.0} % of a step [{:.0}, {:.0}]: forward {} ms, backward {} ms ({watched} steps with detail)",
        if chosen.len() == 1 { "takes" } else { "take" },
        share.0,
        share.1,
        share.2,
        show(forward * 1000.0),
        show(backward * 1000.0)
    )];
    why.extend(largest(all, meant, &durations));
    // The time in each step; where it was not recorded, the mean of the steps in which it was.
    let processes = steps.processes.len() as f64;
    let by = |of: usize, step: &i64| ticks(by_step.get(step).map_or(mean(of), |sums| sums[of] / processes));
    let each = |of: usize| steps.numbers.iter().map(|step| by(of, step)).collect::<Vec<Ticks>>();
    let parts: Vec<(usize, Vec<Ticks>)> = part("forward")
        .zip(part("backward"))
        .map(|(there, back)| vec![(there, each(0)), (back, each(1))])
        .unwrap_or_default();
    let at_most = without(done, &parts);
    let kinds: BTreeSet<&str> =
        all.iter().filter(|of| chosen.contains(of.module.as_str())).map(|of| of.kind.as_str()).collect();
    let found = first_finding(done, |of| {
        let is =
            |key: &str, names: &BTreeSet<&str>| of.subject.get(key).is_some_and(|name| names.contains(name.as_str()));
        is("module", meant) || is("subject", &kinds)
    });
    let (answer, finding) = match found {
        Some((number, cause)) => {
            why.push(sentence(number, cause));
            (CauseVerdict::Yes, Some(number))
        }
        None => {
            let (answer, reason) = unnamed(done, at_most);
            why.push(reason);
            (answer, None)
        }
    };
    SuspectCandidate {
        share: Some(share),
        at_most: Some(at_most),
        finding,
        ..SuspectCandidate::of("module", name, answer, why)
    }
}

/// The names and types of modules, as in "bn1, bn2 (BatchNorm2d)", with the first few names.
fn write_out(chosen: &BTreeSet<&str>, all: &[ModuleSeconds]) -> String {
    let mut names: Vec<String> = chosen.iter().take(NAMES).map(|name| (*name).to_owned()).collect();
    if chosen.len() > NAMES {
        names.push(format!("{} more", chosen.len() - NAMES));
    }
    let kinds: BTreeSet<&str> =
        all.iter().filter(|of| chosen.contains(of.module.as_str())).map(|of| of.kind.as_str()).collect();
    format!("{} ({})", names.join(", "), kinds.into_iter().collect::<Vec<_>>().join(", "))
}

/// A sentence about the module with the most time of its own, where it is none of those that are meant.
fn largest(all: &[ModuleSeconds], meant: &BTreeSet<&str>, durations: &[f64]) -> Option<String> {
    let mut own: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for of in all {
        *own.entry((&of.module, &of.kind)).or_default() += of.own;
    }
    let ((module, kind), seconds) = own.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    let share = seconds * super::super::steps::TICKS_IN_SECOND / durations.iter().sum::<f64>().max(1.0) * 100.0;
    (!meant.contains(module)).then(|| format!("module {module} ({kind}) has the most time of its own: {share:.0} %"))
}
