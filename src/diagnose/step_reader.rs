//! Reads the steps that are looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::{AnswerRows, ask};
use super::steps::{DiagnosedProcess, DiagnosedSteps, PARTS, TICKS_IN_SECOND, Ticks, UNACCOUNTED, ticks};
use crate::block_bootstrap::median;
use crate::shared_steps::SharedSteps;
use crate::step_window::StepWindow;
use crate::unique_pids::UniquePids;
use crate::why_no_step::why_no_step;
use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_proto::step_part::StepPart;

/// The fewest steps whose device times are known for which they are believed: one of several has them.
const MIN_TIMED_STEPS: usize = 8;

/// The most steps that are looked at without a window: the newest ones.
const DEFAULT_STEPS: i64 = 1000;

/// The most steps that a window may have.
const MAX_STEPS: i64 = 20_000;

/// Reads the steps of a window, or the newest ones. Of a program that evaluated before it trained, in calls that counted as steps
/// until an optimizer stepped, only the steps that train.
///
/// # Errors
/// The errors of the queries; there is no step in the window, or there are too many.
pub(crate) async fn read(client: &mut Client, name: &str, window: Option<StepWindow>) -> Result<DiagnosedSteps> {
    let shared = SharedSteps::read(client).await?;
    let asked = window.map_or_else(|| "true".to_owned(), StepWindow::condition);
    let found = ask(
        client,
        &shared.rewrite(&format!(
            "SELECT host, pid, rank, COUNT(*) AS steps, MAX(step) AS last, \
             COALESCE(MIN(step) FILTER (WHERE kind IS DISTINCT FROM 'call'), MIN(step)) AS first, \
             CAST(MAX(ts) AS BIGINT) AS newest FROM python.steps WHERE {asked} GROUP BY host, pid, rank \
             ORDER BY rank, steps DESC, pid"
        )),
    )
    .await?;
    if found.count == 0 {
        let captured = captured(client).await?;
        return match (captured.captures, window) {
            (0, _) => Err(nothing(client, &shared, name, window).await?),
            (_, None) => Ok(captured),
            (_, Some(_)) => Err(no_step(name).hint("it has captures, whose steps can't be chosen: leave out --steps")),
        };
    }
    let (chosen, others) = choose(&found);
    let last = chosen.iter().filter_map(|row| found.int("last", *row)).min().unwrap_or(-1);
    let begins = chosen.iter().filter_map(|row| found.int("first", *row)).max().unwrap_or(0);
    let first = if window.is_some() { begins } else { begins.max(last - DEFAULT_STEPS + 1) };
    if last - first >= MAX_STEPS {
        return Err(Error::limit(format!(
            "{name} has {} steps in that window; the limit is {MAX_STEPS}",
            last - first + 1
        ))
        .hint(format!("choose fewer: --steps {}..{last}", last - MAX_STEPS + 1)));
    }
    let all = processes(&found);
    let pids = UniquePids::of(all.iter().map(|process| (process.host.as_str(), process.pid)));
    let unique = |row: usize| DiagnosedProcess { pid: pids.pid(&all[row].host, all[row].pid), ..all[row].clone() };
    let processes = chosen.into_iter().map(unique).collect();
    let mut steps =
        DiagnosedSteps { processes, read: Some((first, last)), others, shared, pids, ..DiagnosedSteps::default() };
    let parts = StepPart::ALL.map(|part| format!("{} AS {}", part.time(), part.as_str())).join(", ");
    let sql = format!(
        "SELECT host, pid, rank, step, duration, warmup, captured, samples, run_delay, gpu_idle_max, {parts} FROM python.steps WHERE $window"
    );
    let rows = ask(client, &steps.fill(&sql)).await?;
    let snippets =
        ask(client, &format!("SELECT DISTINCT step FROM probe.evals WHERE step BETWEEN {first} AND {last}")).await?;
    let snippets: BTreeSet<i64> = (0..snippets.count).filter_map(|row| snippets.int("step", row)).collect();
    keep(&mut steps, &rows, &snippets);
    Ok(steps)
}

/// The processes of captures of operators and kernels, for a run in which no agent recorded steps.
async fn captured(client: &mut Client) -> Result<DiagnosedSteps> {
    let steps = DiagnosedSteps::default();
    let sql = steps.fill("SELECT host, pid, rank FROM $captures AS c ORDER BY rank, host, pid");
    let found = ask(client, &sql).await?;
    let (durations, parts) = (vec![Vec::new(); found.count], vec![Vec::new(); found.count]);
    Ok(DiagnosedSteps { durations, parts, processes: processes(&found), captures: found.count, ..steps })
}

/// The process of each row, by its columns host, pid and rank.
fn processes(found: &AnswerRows) -> Vec<DiagnosedProcess> {
    let process = |row: usize| DiagnosedProcess {
        host: found.text("host", row).unwrap_or_default(),
        pid: found.int("pid", row).unwrap_or_default(),
        rank: found.int("rank", row),
    };
    (0..found.count).map(process).collect()
}

/// The rows of the processes to look at: of every rank the process that stepped last (a rank may have been restarted); without
/// ranks, the process with the most steps. Also the number of processes without a rank that are left out.
fn choose(found: &AnswerRows) -> (Vec<usize>, usize) {
    let mut of_rank: BTreeMap<i64, usize> = BTreeMap::new();
    let mut without = Vec::new();
    for row in 0..found.count {
        let newest = |row: usize| found.number("newest", row).unwrap_or_default();
        match found.int("rank", row) {
            Some(rank) => {
                let kept = of_rank.entry(rank).or_insert(row);
                if newest(row) > newest(*kept) {
                    *kept = row;
                }
            }
            None => without.push(row),
        }
    }
    if of_rank.is_empty() {
        let others = without.len().saturating_sub(1);
        return (without.into_iter().take(1).collect(), others);
    }
    (of_rank.into_values().collect(), without.len())
}

/// Adds the steps of `rows` that every process finished, except those that are warming up, were captured or had a snippet.
fn keep(steps: &mut DiagnosedSteps, rows: &AnswerRows, snippets: &BTreeSet<i64>) {
    let mut by_step: BTreeMap<i64, Vec<Option<usize>>> = BTreeMap::new();
    for row in 0..rows.count {
        let (host, pid, rank) = (rows.text("host", row), rows.int("pid", row), rows.int("rank", row));
        let is = |process: &DiagnosedProcess| {
            Some(process.pid) == pid && process.rank == rank && Some(&process.host) == host.as_ref()
        };
        let (Some(process), Some(step)) = (steps.processes.iter().position(is), rows.int("step", row)) else {
            continue;
        };
        by_step.entry(step).or_insert_with(|| vec![None; steps.processes.len()])[process] = Some(row);
    }
    steps.durations = vec![Vec::new(); steps.processes.len()];
    steps.parts = vec![Vec::new(); steps.processes.len()];
    let (mut samples, mut delay) = (Some(0.0), Some(0.0));
    let mut busy: Vec<Vec<f64>> = vec![Vec::new(); steps.processes.len()];
    for (step, indices) in by_step {
        let Some(indices) = indices.into_iter().collect::<Option<Vec<usize>>>() else {
            steps.left_out += 1;
            continue;
        };
        if indices.iter().any(|row| rows.number("warmup", *row) == Some(1.0)) {
            steps.warming_up += 1;
            continue;
        }
        let captured = indices.iter().any(|row| rows.number("captured", *row) == Some(1.0));
        if captured || snippets.contains(&step) {
            steps.left_out += 1;
            continue;
        }
        steps.numbers.push(step);
        for (process, row) in indices.into_iter().enumerate() {
            let of = |name: &str| ticks(rows.number(name, row).unwrap_or_default());
            let mut parts: [Ticks; 9] =
                std::array::from_fn(|part| if part == UNACCOUNTED { 0 } else { of(PARTS[part]) });
            let duration = of("duration");
            parts[UNACCOUNTED] = duration - parts.iter().sum::<Ticks>();
            steps.durations[process].push(duration);
            steps.parts[process].push(parts);
            let add = |sum: Option<f64>, name: &str| sum.zip(rows.number(name, row)).map(|(sum, more)| sum + more);
            (samples, delay) = (add(samples, "samples"), add(delay, "run_delay"));
            let known = rows.number("duration", row).zip(rows.number("gpu_idle_max", row));
            busy[process].extend(known.map(|(duration, idle)| (duration - idle).max(0.0)));
        }
    }
    let usual = |busy: Vec<f64>| (busy.len() >= MIN_TIMED_STEPS).then(|| median(busy).map(ticks)).flatten();
    steps.device_busy = busy.into_iter().map(usual).collect();
    let seconds = steps.observed() / TICKS_IN_SECOND;
    steps.samples_per_second = samples.filter(|_| seconds > 0.0).map(|samples| samples / seconds);
    let all = seconds * steps.processes.len() as f64;
    steps.run_delay = delay.filter(|_| all > 0.0).map(|delay| delay / all);
}

fn no_step(name: &str) -> Error {
    Error::failed(format!("{name} has no finished step to look at"))
}

async fn nothing(client: &mut Client, shared: &SharedSteps, name: &str, window: Option<StepWindow>) -> Result<Error> {
    let sql = shared.rewrite("SELECT MIN(step) AS first, MAX(step) AS last FROM python.steps");
    let found = ask(client, &sql).await?;
    Ok(match (found.int("first", 0).zip(found.int("last", 0)), window) {
        (Some((first, last)), Some(window)) => {
            Error::failed(format!("{name} has no step within {window}")).hint(format!("it has steps {first}..{last}"))
        }
        _ => {
            let nothing = no_step(name);
            let imported = ask(client, "SELECT COUNT(*) AS count FROM python.captures").await?.int("count", 0);
            if imported > Some(0) {
                return Ok(
                    nothing.hint("what was captured has no operators or kernels: python.captures says what it has")
                );
            }
            let ended = "SELECT exception FROM python.exceptions WHERE uncaught AND main ORDER BY ts LIMIT 1";
            if let Some(exception) = ask(client, ended).await?.text("exception", 0) {
                return Ok(nothing.hint(format!("{exception} ended it, and probe {name} crash says where")));
            }
            let why = why_no_step(client).await?;
            let other = "probe doctor says whether programs here are recorded; of a run that does not step: probe hang";
            nothing.hint(why.unwrap_or_else(|| other.to_owned()))
        }
    })
}
