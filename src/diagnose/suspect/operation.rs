//! Operations that are suspected: copies (copy_, clone, to), reads (item), collectives (all_reduce), and all other operators
//! (addmm).

use std::collections::BTreeSet;

use super::super::diagnosis::Diagnosis;
use super::super::finding::show;
use super::super::rows::{AnswerRows, ask};
use super::super::steps::{COMM, part, ticks};
use super::candidate::{CauseVerdict, SuspectCandidate, first_finding, normalized_name, sentence, unnamed, without};
use super::part as parts;
use probe_client::Client;
use probe_common::error::Result;

/// The most lines that are listed.
const LINES: usize = 3;

/// Names that torch's own profiler has for any copy: all copies are meant.
const EVERY_COPY: [&str; 6] = ["copy", "copies", "atencopy", "memcpy", "tocopy", "atentocopy"];

pub(super) async fn judge(
    client: &mut Client,
    done: &Diagnosis,
    name: &str,
    known: &mut BTreeSet<String>,
) -> Result<Vec<SuspectCandidate>> {
    let asked = normalized_name(name.strip_prefix("aten::").unwrap_or(name));
    let mut reasons = Vec::new();
    let copies = ask(client, &done.steps.fill(&sql("python.copies", "duration", "1"))).await?;
    reasons.extend(watched(done, &copies, "copies-of-tensors", &asked, EVERY_COPY.contains(&asked.as_str()), known));
    let reads = ask(client, &done.steps.fill(&sql("python.sync_points", "waited", "count"))).await?;
    reasons.extend(watched(done, &reads, "reads-of-tensors", &asked, false, known));
    if reasons.is_empty() {
        let counts = ask(client, &done.steps.fill(COUNTS)).await?;
        reasons.extend(watched(done, &counts, "many-small-operations", &asked, false, known));
    }
    reasons.extend(collectives(client, done, &asked, known).await?);
    Ok(reasons)
}

/// A query for seconds and calls in a watched step by operator and part, for operators of which no line is known.
const COUNTS: &str = "WITH w AS (SELECT COUNT(*) AS steps FROM (SELECT DISTINCT pid, step FROM python.operator_counts WHERE $window)) \
     SELECT replace(operator, 'aten::', '') AS operation, part, CAST(NULL AS VARCHAR) AS place, \
     SUM(duration) / MAX(w.steps) AS seconds, CAST(SUM(count) AS DOUBLE) / MAX(w.steps) AS calls, MAX(w.steps) AS steps \
     FROM python.operator_counts CROSS JOIN w WHERE $window GROUP BY operation, part ORDER BY seconds DESC";

/// A query for seconds and calls in a watched step, by operation, part and line.
fn sql(table: &str, seconds: &str, calls: &str) -> String {
    format!(
        "WITH w AS (SELECT COUNT(*) AS steps FROM (SELECT DISTINCT pid, step FROM {table} WHERE $window)) \
         SELECT operation, part, concat(file, ':', CAST(line AS VARCHAR)) AS place, \
         SUM({seconds}) / MAX(w.steps) AS seconds, CAST(SUM({calls}) AS DOUBLE) / MAX(w.steps) AS calls, \
         MAX(w.steps) AS steps FROM {table} CROSS JOIN w WHERE $window GROUP BY operation, part, place ORDER BY seconds DESC"
    )
}

fn watched(
    done: &Diagnosis,
    rows: &AnswerRows,
    rule: &str,
    asked: &str,
    every: bool,
    known: &mut BTreeSet<String>,
) -> Option<SuspectCandidate> {
    let operation = |row: usize| rows.text("operation", row).unwrap_or_default();
    known.extend((0..rows.count).map(operation));
    let meant: Vec<usize> = (0..rows.count).filter(|row| every || normalized_name(&operation(*row)) == asked).collect();
    if meant.is_empty() {
        return None;
    }
    let seconds = |row: usize| rows.number("seconds", row).unwrap_or(0.0);
    let step = done.steps.observed() / done.steps.count().max(1) as f64 / super::super::steps::TICKS_IN_SECOND;
    let percent = |seconds: f64| if step > 0.0 { seconds / step * 100.0 } else { 0.0 };
    let all: f64 = meant.iter().map(|row| seconds(*row)).sum();
    let line = |row: &usize| {
        let location = match rows.text("place", *row).as_deref() {
            None => format!("in {}", rows.text("part", *row).unwrap_or_default()),
            Some(":") => "inside torch".to_owned(),
            Some(line) => format!("at {line}"),
        };
        format!("{} {location} {:.1} %", operation(*row), percent(seconds(*row)))
    };
    let calls: f64 = meant.iter().filter_map(|row| rows.number("calls", *row)).sum();
    let steps = rows.int("steps", 0).unwrap_or(0);
    let lines: Vec<String> = meant.iter().take(LINES).map(line).collect();
    let mut why = vec![format!(
        "{calls:.0} of them take {} ms of a step, {:.1} % ({steps} steps were watched): {}",
        show(all * 1000.0),
        percent(all),
        lines.join(", ")
    )];
    if let Some(other) = (0..rows.count).find(|row| !meant.contains(row) && seconds(*row) > all) {
        why.push(format!("others take more: {}", line(&other)));
    }
    let by_part = |name: &&str| {
        let of = |row: &&usize| rows.text("part", **row).as_deref() == Some(*name);
        let sum: f64 = meant.iter().filter(of).map(|row| seconds(*row)).sum();
        Some((part(name)?, vec![ticks(sum); done.steps.count()]))
    };
    let at_most = without(
        done,
        &["data", "forward", "backward", "optimizer", "other"].iter().filter_map(by_part).collect::<Vec<_>>(),
    );
    let is_meant = |line: &String| meant.iter().any(|row| rows.text("place", *row).as_ref() == Some(line));
    let found = first_finding(done, |of| of.rule == rule && of.subject.get("line").is_some_and(is_meant));
    let name = if every { "copies" } else { asked };
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
    Some(SuspectCandidate { at_most: Some(at_most), finding, ..SuspectCandidate::of("operation", name, answer, why) })
}

async fn collectives(
    client: &mut Client,
    done: &Diagnosis,
    asked: &str,
    known: &mut BTreeSet<String>,
) -> Result<Option<SuspectCandidate>> {
    let sql = "SELECT operation_type AS operation, CAST(COUNT(*) AS DOUBLE) / COUNT(DISTINCT concat(CAST(pid AS VARCHAR), \
               ' ', CAST(step AS VARCHAR))) AS calls, SUM(bytes) / 1e6 / COUNT(DISTINCT concat(CAST(pid AS VARCHAR), ' ', \
               CAST(step AS VARCHAR))) AS mb FROM python.nccl_trace WHERE $window GROUP BY operation_type";
    let rows = ask(client, &done.steps.fill(sql)).await?;
    let operation = |row: usize| rows.text("operation", row).unwrap_or_default();
    known.extend((0..rows.count).map(operation));
    let Some(row) = (0..rows.count).find(|row| normalized_name(&operation(*row)) == asked) else { return Ok(None) };
    let mut reason = parts::of(done, COMM);
    reason.kind = "operation";
    reason.name = operation(row);
    let (calls, mb) = (rows.number("calls", row).unwrap_or(0.0), rows.number("mb", row).unwrap_or(0.0));
    reason.why.insert(0, format!("a rank issues {calls:.0} {} a step, of {mb:.1} MB together", reason.name));
    Ok(Some(reason))
}
