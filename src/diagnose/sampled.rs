//! The line in which the time of a finding is spent, found by samples of main threads (`python.stack_samples`).

use std::collections::{BTreeMap, BTreeSet};

use super::diagnosis::{Diagnosis, UndecidedRule};
use super::finding::Finding;
use super::line::{CodeLocation, SampledLine};
use super::rows::{AnswerRows, ask};
use super::rule::Rule;
use super::statistics::share_at_least;
use super::steps::{DiagnosedSteps, PARTS, part, seconds};
use probe_client::Client;
use probe_common::error::Result;

/// The fewest samples needed, in the part of the step that a finding is about.
const MIN_SAMPLES: usize = 10;
/// The fewest steps that the samples must come from: one long step has many samples.
const MIN_STEPS: usize = 3;
/// The share of the samples that a line, or a few functions together, must have with confidence.
const SHARE: f64 = 0.5;
/// The most functions that are named where no single one has that share, and the share that each must have.
const MAX_FUNCTIONS: usize = 3;
const SHARE_OF_EACH: f64 = 0.15;
/// The fewest samples in a part, as a share of the number that its time lets expect: with fewer, stacks and steps disagree.
const AGREES: f64 = 0.5;

const RECORD: &str = "probe diagnose --ask samples a live run for 4 s; PROBE_STACK_SAMPLING must not be off";

/// Names the lines of findings whose rules ask for it, or says why that is not decided.
///
/// # Errors
/// The queries'.
pub(super) async fn name_lines(
    client: &mut Client,
    done: &mut Diagnosis,
    rules: &BTreeMap<String, Rule>,
) -> Result<()> {
    let wanted = |of: &Finding| rules.get(&of.rule).filter(|rule| rule.names_line);
    if !done.findings.iter().any(|of| wanted(of).is_some()) {
        return Ok(());
    }
    let samples = StackSamples::read(client, &done.steps).await?;
    for finding in &mut done.findings {
        let Some(rule) = wanted(finding) else { continue };
        match samples.of(finding, rule, &done.steps) {
            Ok(line) => {
                finding.says += &line.text();
                finding.sampled = Some(line);
            }
            Err(why) => {
                let why = format!("the line: {why}");
                done.not_decided.push(UndecidedRule { rule: finding.rule.clone(), why, how: RECORD.into() });
            }
        }
    }
    Ok(())
}

struct StackSample {
    process: usize,
    /// The index of the step in `DiagnosedSteps::numbers`.
    step: usize,
    part: String,
    location: CodeLocation,
    library: Option<String>,
}

impl StackSample {
    /// The file and name of the sample's function; None for the top level of a script.
    fn function(&self) -> Option<(&str, &str)> {
        let name = without_comprehension(&self.location.function);
        (name != "<module>").then_some((&self.location.file, name))
    }
}

/// The function of which a comprehension is a part.
fn without_comprehension(mut name: &str) -> &str {
    let ends = ["<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"];
    // Within another comprehension there are no "<locals>".
    while let Some(outer) = ends.iter().find_map(|end| name.strip_suffix(end)?.strip_suffix('.')) {
        name = outer.strip_suffix(".<locals>").unwrap_or(outer);
    }
    name
}

struct StackSamples(Vec<StackSample>);

impl StackSamples {
    async fn read(client: &mut Client, steps: &DiagnosedSteps) -> Result<Self> {
        let begins = "SELECT pid, step, CAST(ts AS BIGINT) AS ts, duration FROM python.steps WHERE $window ORDER BY ts";
        let begins = ask(client, &steps.fill(begins)).await?;
        let at: BTreeMap<i64, usize> = steps.numbers.iter().enumerate().map(|(at, step)| (*step, at)).collect();
        // By process: when each step began and ended (ns), in the order of time.
        let mut spans: BTreeMap<i64, Vec<(f64, f64, usize)>> = BTreeMap::new();
        for row in 0..begins.count {
            let (number, whole) = (|name: &str| begins.number(name, row), |name: &str| begins.int(name, row));
            let (Some(pid), Some(step), Some(ts), Some(duration)) =
                (whole("pid"), whole("step"), number("ts"), number("duration"))
            else {
                continue;
            };
            if let Some(at) = at.get(&step) {
                spans.entry(pid).or_default().push((ts, ts + duration * 1e9, *at));
            }
        }
        // A process reports its steps every half second, so a sample may be of a later step than it says.
        let sql = "SELECT pid, CAST(ts AS BIGINT) AS ts, part, COALESCE(function, library_function) AS function, \
                   COALESCE(file, library_file) AS file, COALESCE(line, library_line) AS line, \
                   CASE WHEN function IS NOT NULL THEN library_function END AS library FROM python.stack_samples \
                   WHERE pid IN ($pids) AND step BETWEEN $first - 2000 AND $last + 1";
        let rows = ask(client, &steps.fill(sql)).await?;
        Ok(Self((0..rows.count).filter_map(|row| sample(&rows, row, steps, &spans)).collect()))
    }

    /// The line of a finding, or why it has none.
    fn of(&self, finding: &Finding, rule: &Rule, steps: &DiagnosedSteps) -> Result<SampledLine, String> {
        // Parts of several ranks are one finding where they are the same part. A rule about several parts may say which one has
        // the line: backward passes are in the line that begins them.
        let parts: BTreeSet<usize> = finding.reductions.iter().map(|of| of.part).collect();
        let of_rule = rule.part.as_deref().and_then(part);
        let part =
            of_rule.filter(|part| parts.contains(part)).or_else(|| parts.first().copied().filter(|_| parts.len() == 1));
        let part = &part.ok_or("it is about several parts of a step")?;
        // Where only some steps are long, only the samples of those steps count.
        let counts = |process: usize, step: usize| {
            finding.reductions.iter().any(|of| of.process == process && of.by.get(step).is_some_and(|by| *by > 0))
        };
        let within: Vec<&StackSample> = self.0.iter().filter(|of| counts(of.process, of.step)).collect();
        let there: Vec<&StackSample> = within.iter().copied().filter(|of| of.part == PARTS[*part]).collect();
        let from: BTreeSet<usize> = there.iter().map(|of| of.step).collect();
        if there.len() < MIN_SAMPLES || from.len() < MIN_STEPS {
            return Err(format!(
                "{} samples of the stack in {} steps are too few: it takes {MIN_SAMPLES} in {MIN_STEPS}",
                there.len(),
                from.len()
            ));
        }
        let (mut time, mut whole) = (0, 0);
        for of in finding.reductions.iter().filter(|of| of.part == *part) {
            for step in (0..steps.count()).filter(|step| counts(of.process, *step)) {
                time += steps.parts[of.process][step][*part];
                whole += steps.duration(of.process, step);
            }
        }
        let expected = within.len() as f64 * seconds(time) / seconds(whole).max(f64::MIN_POSITIVE);
        if (there.len() as f64) < AGREES * expected {
            return Err(format!(
                "{} samples are in {}, where its time lets expect {expected:.0}: the stacks do not show the part",
                there.len(),
                PARTS[*part]
            ));
        }
        most(&there).ok_or_else(|| {
            format!(
                "no line, and no {MAX_FUNCTIONS} functions together, have half of {} samples with 97.5 % confidence",
                there.len()
            )
        })
    }
}

/// The line that has most of these samples with confidence, or the most sampled line of the function that has, or of the functions
/// that have them together.
fn most(samples: &[&StackSample]) -> Option<SampledLine> {
    let is_sure = |count: usize| share_at_least(count, samples.len()) >= SHARE;
    if let Some(of) = largest(samples, |of| Some(&of.location)).filter(|of| is_sure(of.len())) {
        return line(&of, true, samples.len());
    }
    if let Some(of) = largest(samples, StackSample::function).filter(|of| is_sure(of.len())) {
        return line(&of, false, samples.len());
    }
    // A line of the top level of a script stands for itself.
    let mut groups = groups(samples, |of| Some(of.function().ok_or(&of.location)));
    groups.sort_by_key(|of| std::cmp::Reverse(of.len()));
    groups.truncate(MAX_FUNCTIONS);
    groups.retain(|of| of.len() as f64 >= SHARE_OF_EACH * samples.len() as f64);
    is_sure(groups.iter().map(Vec::len).sum()).then_some(())?;
    let mut lines = groups.iter().map(|of| line(of, of[0].function().is_none(), samples.len()));
    let first = lines.next()??;
    Some(SampledLine { beside: lines.collect::<Option<_>>()?, ..first })
}

/// The most sampled line of these samples, which are some of `all`. `is_line`: they are all of that line.
fn line(of: &[&StackSample], is_line: bool, all: usize) -> Option<SampledLine> {
    let mut location = largest(of, |of| Some(&of.location))?.first()?.location.clone();
    if !is_line {
        location.function = without_comprehension(&location.function).to_owned();
    }
    let library = largest(of, |of| of.library.as_deref()).filter(|within| 2 * within.len() >= of.len());
    let library = library.and_then(|within| within.first()?.library.clone());
    let share = of.len() as f64 / all as f64;
    Some(SampledLine { location, is_line, library, samples: all, share, beside: Vec::new() })
}

/// The largest group of samples with the same key; samples without a key are left out.
fn largest<'a, K: Ord>(
    samples: &[&'a StackSample],
    key: impl Fn(&'a StackSample) -> Option<K>,
) -> Option<Vec<&'a StackSample>> {
    groups(samples, key).into_iter().max_by_key(Vec::len)
}

/// The samples in groups with the same key, in the order of keys; samples without a key are left out.
fn groups<'a, K: Ord>(
    samples: &[&'a StackSample],
    key: impl Fn(&'a StackSample) -> Option<K>,
) -> Vec<Vec<&'a StackSample>> {
    let mut by_key: BTreeMap<K, Vec<&StackSample>> = BTreeMap::new();
    for of in samples.iter().copied() {
        if let Some(key) = key(of) {
            by_key.entry(key).or_default().push(of);
        }
    }
    by_key.into_values().collect()
}

fn sample(
    rows: &AnswerRows,
    row: usize,
    steps: &DiagnosedSteps,
    spans: &BTreeMap<i64, Vec<(f64, f64, usize)>>,
) -> Option<StackSample> {
    let (pid, ts) = (rows.int("pid", row)?, rows.number("ts", row)?);
    let process = steps.processes.iter().position(|process| process.pid == pid)?;
    let spans = spans.get(&pid)?;
    let (_, end, step) = spans[spans.partition_point(|(begin, ..)| *begin <= ts).checked_sub(1)?];
    let text = |name: &str| rows.text(name, row);
    (ts < end).then_some(())?;
    let location = CodeLocation { function: text("function")?, file: text("file")?, line: rows.int("line", row)? };
    Some(StackSample { process, step, part: text("part")?, location, library: text("library") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comprehension_is_a_part_of_its_function() {
        let sample = |function: &str, line: i64| {
            let location = CodeLocation { function: function.into(), file: "train.py".into(), line };
            StackSample { process: 0, step: 0, part: "other".into(), location, library: None }
        };
        let inner = "EMA.update.<locals>.<dictcomp>.<locals>.<genexpr>";
        let samples = [(inner, 37, 20), ("EMA.update", 35, 8), ("EMA.update", 36, 4), ("<module>", 52, 3)];
        let samples: Vec<_> = samples
            .into_iter()
            .flat_map(|(function, line, count)| (0..count).map(move |_| sample(function, line)))
            .collect();
        let found = most(&samples.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!((found.location.function.as_str(), found.location.line, found.is_line), ("EMA.update", 37, false));
        assert_eq!(without_comprehension("train.<locals>.step"), "train.<locals>.step");
        assert_eq!(without_comprehension("<listcomp>"), "<listcomp>");
        assert_eq!(without_comprehension("report.<locals>.<listcomp>.<listcomp>"), "report");
    }

    #[test]
    fn functions_that_share_the_time_are_named_together() {
        let samples = |counts: &[(&str, i64, usize)]| -> Vec<StackSample> {
            let sample = |function: &str, line: i64| {
                let location = CodeLocation { function: function.into(), file: "train.py".into(), line };
                StackSample { process: 0, step: 0, part: "other".into(), location, library: None }
            };
            counts.iter().flat_map(|(function, line, count)| (0..*count).map(|_| sample(function, *line))).collect()
        };
        let said = |counts: &[(&str, i64, usize)]| {
            let samples = samples(counts);
            most(&samples.iter().collect::<Vec<_>>()).map(|of| of.text())
        };
        assert_eq!(
            said(&[("score", 9, 40), ("save", 30, 25), ("save", 31, 13), ("<module>", 60, 2)]).unwrap(),
            "; 50 % of that time is in score, as at train.py:9, and 48 % in save, as at train.py:30 (sampled)"
        );
        assert_eq!(
            said(&[("<module>", 60, 30), ("<module>", 61, 25), ("score", 9, 20), ("save", 30, 20)]).unwrap(),
            "; 32 % of that time is at train.py:60 in <module>, 26 % at train.py:61 in <module>, and 21 % in save, as at \
             train.py:30 (sampled)"
        );
        let many: Vec<(String, i64, usize)> = (0..12).map(|number| (format!("f{number}"), number, 10)).collect();
        let many: Vec<_> = many.iter().map(|(function, line, count)| (function.as_str(), *line, *count)).collect();
        assert_eq!(said(&many), None);
    }
}
