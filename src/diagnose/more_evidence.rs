//! Records more evidence in a live run where a diagnosis leaves much of a step without a name (`--ask`): the cheapest evidence
//! first, and no more than needed.

use std::time::{Duration, Instant};

use probe_client::Client;
use probe_common::error::{Error, ErrorKind as Failure, Result};
use probe_proto::v1::{StacksCall, WatchCall};

use super::diagnosis::Diagnosis;
use super::finding::Finding;
use super::request::{EvidenceKind, EvidenceRequest, UnexplainedTime};
use super::rows::ask as query;
use super::rule_files;

/// The smallest percentage of a step without a name for which more evidence is recorded.
const WORTH: f64 = 10.0;
/// How long stacks are sampled (s).
const SAMPLING: f64 = 4.0;
/// Samples of stacks in a second.
const RATE: f64 = 50.0;
/// Steps in which modules are recorded.
const DETAIL_STEPS: u32 = 20;
/// Steps in which operators are recorded.
const OPERATOR_STEPS: u32 = 3;
/// The longest wait for the steps that are to be recorded.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks whether the steps have been recorded.
const LOOK: Duration = Duration::from_millis(250);
/// The time within which a request reaches agents, and rows reach the collector.
const ON_THE_WAY: Duration = Duration::from_millis(1500);

/// The kinds of evidence, the cheapest first.
const PLAN: [EvidenceKind; 3] = [EvidenceKind::Stacks, EvidenceKind::Modules, EvidenceKind::Operators];

impl EvidenceKind {
    /// The activity in words, for progress messages.
    fn says(self) -> String {
        match self {
            Self::Stacks => format!("sampling stacks from outside for {SAMPLING} s"),
            Self::Modules => format!("recording modules in each of {DETAIL_STEPS} steps"),
            Self::Operators => format!("recording copies and reads of tensors in {OPERATOR_STEPS} steps"),
        }
    }

    /// Whether this evidence can explain time in a part of a step.
    fn is_about(self, part: &str) -> bool {
        match self {
            Self::Stacks => true,
            Self::Modules => matches!(part, "forward" | "backward" | "uneven"),
            Self::Operators => matches!(part, "data" | "forward" | "other"),
        }
    }

    /// Records the evidence, and returns its cost in words.
    async fn ask(self, client: &mut Client) -> Result<String> {
        match self {
            Self::Stacks => sample(client).await,
            Self::Modules => {
                let call = WatchCall { detail_steps: DETAIL_STEPS, operator_steps: 0 };
                let since = newest(client).await?;
                let watched = client.watch(call).await?;
                if watched.processes == 0 {
                    return Err(Error::failed("no process trains any more"));
                }
                if watched.automatic == 0 {
                    return Err(
                        Error::failed("detail is not auto in any process").hint("probe ENDPOINT config detail=auto")
                    );
                }
                let sql = format!(
                    "SELECT MIN(steps) AS steps FROM (SELECT COUNT(*) AS steps FROM python.steps \
                     WHERE detail AND step > {since} GROUP BY pid)"
                );
                let steps = reached(client, &sql, i64::from(DETAIL_STEPS)).await?;
                Ok(format!("{steps} steps with modules{}", longer(client).await.unwrap_or_default()))
            }
            Self::Operators => {
                let call = WatchCall { detail_steps: 0, operator_steps: OPERATOR_STEPS };
                let watched = client.watch(call).await?;
                tokio::time::sleep(ON_THE_WAY).await;
                let since = newest(client).await?;
                let sql = format!(
                    "SELECT MIN(step) AS steps FROM (SELECT MAX(step) AS step FROM python.steps WHERE step > {since} \
                     GROUP BY pid)"
                );
                reached(client, &sql, since + i64::from(OPERATOR_STEPS) + 1).await?;
                Ok(format!("{OPERATOR_STEPS} steps of {}, with operators", processes(watched.processes.into())))
            }
        }
    }
}

/// Records evidence about the largest row of the waterfall without a name, diagnoses again, and goes on until no large row is
/// left or [`PLAN`] has ended. `every` row counts, or else only those in which no time is expected. `told` is called with
/// progress messages.
///
/// # Errors
/// The errors of a diagnosis. Evidence that could not be recorded is no error: the request in the result says why.
pub(crate) async fn ask(
    client: &mut Client,
    mut done: Diagnosis,
    every: bool,
    diagnose: impl AsyncFn(&mut Client) -> Result<Diagnosis>,
    report: impl Fn(&str),
) -> Result<Diagnosis> {
    let mut requests: Vec<EvidenceRequest> = Vec::new();
    for what in PLAN {
        let Some(row) = largest(&done, every, what)? else { continue };
        let percent = row.percent;
        report(&format!("{percent:.0} % of a step is unexplained ({}): {}", row.part, what.says()));
        let began = Instant::now();
        let cost = match what.ask(client).await {
            Err(error) if error.kind() == Failure::Unreachable => return Err(error),
            Err(error) => Err(match error.hint_text() {
                Some(hint) => format!("{error} ({hint})"),
                None => error.to_string(),
            }),
            Ok(cost) => Ok(cost),
        };
        let seconds = began.elapsed().as_secs_f64();
        match &cost {
            Ok(cost) => report(&format!("{seconds:.1} s; {cost}")),
            Err(why) => report(&format!("not possible: {why}")),
        }
        let is_recorded = cost.is_ok();
        requests.push(EvidenceRequest { what, row, seconds, cost });
        if is_recorded {
            let before = std::mem::take(&mut done.findings);
            done = diagnose(client).await?;
            report(&new_findings(&before, &done.findings));
        }
    }
    done.asked = Some(requests);
    Ok(done)
}

/// What findings show that those before did not: other causes, or the line of a cause.
fn new_findings(before: &[Finding], after: &[Finding]) -> String {
    let news = |of: &Finding| {
        let known: Vec<&Finding> = before.iter().filter(|known| known.rule == of.rule).collect();
        match &of.sampled {
            _ if known.is_empty() => Some(of.rule.clone()),
            Some(line) if known.iter().all(|known| known.sampled.is_none()) => {
                Some(format!("the line of {} ({})", of.rule, line.line()))
            }
            _ => None,
        }
    };
    let mut news: Vec<String> = after.iter().filter_map(news).collect();
    news.dedup();
    if news.is_empty() { "it shows nothing new".to_owned() } else { format!("it shows {}", news.join(", ")) }
}

/// The largest row of the waterfall without a name that recording `what` could explain.
fn largest(done: &Diagnosis, every: bool, what: EvidenceKind) -> Result<Option<UnexplainedTime>> {
    let names_lines: Vec<String> =
        rule_files::built_in()?.into_iter().filter(|rule| rule.names_line).map(|rule| rule.name).collect();
    let total = done.total().max(1) as f64;
    // More could not be saved, where a GPU has work meanwhile.
    let most = done.steps.device_busy_share().map_or(100.0, |share| 100.0 * (1.0 - share));
    let rows = done.waterfall.iter().filter_map(|row| {
        let whole = row.typical + row.excess;
        let ticks = match row.finding {
            Some(index) => {
                let finding = &done.findings[index];
                let has_none = finding.sampled.is_none() && !finding.subject.contains_key("line");
                (what == EvidenceKind::Stacks && has_none && names_lines.contains(&finding.rule)).then_some(whole)?
            }
            // No time is expected in these parts.
            None if matches!(row.part, "other" | "unaccounted" | "uneven") => whole,
            None if matches!(row.part, "comm" | "validation" | "checkpoint") => return None,
            None if every => whole,
            // Time that a part takes in most steps is its work; excess in some steps is not.
            None => row.excess,
        };
        let percent = (ticks as f64 / total * 100.0).min(most);
        Some(UnexplainedTime { part: row.part, percent, finding: row.finding })
    });
    let worth = rows.filter(|row| row.percent >= WORTH && what.is_about(row.part));
    Ok(worth.max_by(|one, other| one.percent.total_cmp(&other.percent)))
}

async fn sample(client: &mut Client) -> Result<String> {
    let call = StacksCall { duration_s: SAMPLING, rate: RATE, main_threads: true, ..StacksCall::default() };
    let answer = client.stacks(call).await?;
    let samples: u64 = answer.processes.iter().map(|process| process.samples).sum();
    if samples == 0 {
        let why = answer.processes.iter().find(|process| !process.problem.is_empty());
        let problem = why.map_or("no process of the run could be read", |process| process.problem.as_str());
        let error = Error::failed(problem.to_owned());
        return Err(match why.filter(|process| !process.hint.is_empty()) {
            Some(process) => error.hint(process.hint.clone()),
            None => error,
        });
    }
    let sampled = answer.processes.iter().filter(|process| process.samples > 0).count();
    let (of, cost) = (processes(sampled as u64), answer.processor_s);
    Ok(format!("{samples} samples of {of}, for {cost:.2} s of the collector's processor; training was not stopped"))
}

/// A number of processes in words.
fn processes(count: u64) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// The number of the newest step; -1 if there are no steps.
async fn newest(client: &mut Client) -> Result<i64> {
    Ok(query(client, "SELECT MAX(step) AS step FROM python.steps").await?.int("step", 0).unwrap_or(-1))
}

/// Waits until the `steps` of the query's answer reach `enough`, and returns them.
///
/// # Errors
/// The query's; they did not within [`TIMEOUT`].
async fn reached(client: &mut Client, sql: &str, enough: i64) -> Result<i64> {
    let began = Instant::now();
    loop {
        let steps = query(client, sql).await?.int("steps", 0).unwrap_or(0);
        if steps >= enough {
            return Ok(steps);
        }
        if began.elapsed() >= TIMEOUT {
            return Err(Error::failed(format!("the steps were not made within {} s", TIMEOUT.as_secs())));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How much longer a step with modules takes, by the agents' own estimate, in words.
async fn longer(client: &mut Client) -> Option<String> {
    let sql = "SELECT MAX((events - COALESCE(events_without_detail, 0)) * event_cost / step_duration) AS share \
               FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY ts DESC) AS newest FROM probe.overhead \
               WHERE step_duration > 0) WHERE newest = 1";
    let share = query(client, sql).await.ok()?.number("share", 0)?;
    Some(format!(", each of which takes {:.1} % longer by the agents' own reckoning", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::super::findings_over_time::tests::finding;
    use super::super::line::{CodeLocation, SampledLine};
    use super::*;
    use crate::diagnose::Severity;

    #[test]
    fn what_evidence_shows_is_causes_and_lines() {
        let stall = [finding("periodic-stall", Severity::Warn, 0)];
        let location = CodeLocation { function: "save".into(), file: "train.py".into(), line: 9 };
        let line = SampledLine { location, is_line: true, library: None, samples: 20, share: 0.9, beside: Vec::new() };
        let with_line = [Finding { sampled: Some(line), ..stall[0].clone() }];
        let sampler = |rank| finding("slow-sampler", Severity::Note, rank);
        assert_eq!(new_findings(&stall, &stall), "it shows nothing new");
        assert_eq!(new_findings(&with_line, &with_line), "it shows nothing new");
        assert_eq!(
            new_findings(&stall, &[with_line[0].clone(), sampler(0), sampler(1)]),
            "it shows the line of periodic-stall (train.py:9), slow-sampler"
        );
    }
}
