//! A healthy run, or a window of this one, with which the steps are compared (`--against`).
//!
//! Wall time proves nothing where the machine was busier than before: the time that threads wait for a processor is part of the
//! reference, so that load of other programs is no regression.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::finding;
use super::rows::{AnswerRows, ask};
use super::statistics::change_interval;
use super::step_reader;
use super::steps::{DiagnosedSteps, MIN_STEPS, PARTS, seconds};
use super::waterfall::durations;
use crate::block_bootstrap::median;
use crate::step_window::StepWindow;
use probe_client::Client;
use probe_common::error::{Error, Result};

/// Columns of `python.environment` that identify a row and are no conditions of training.
const NO_CONDITION: [&str; 13] = [
    "run",
    "host",
    "pid",
    "rank",
    "local_rank",
    "role",
    "ts",
    "step",
    "batch_shape",
    // A short run has not been looked at.
    "optimizers_gone",
    "optimizer_steps",
    "unoptimized_parameters",
    "unoptimized_parameter",
];

/// The run or window with which steps are compared.
pub(crate) struct Reference {
    name: String,
    pub(super) steps: DiagnosedSteps,
    /// The newest row of `python.environment` of each process.
    conditions: AnswerRows,
}

/// A condition of training that has changed.
struct ChangedCondition {
    what: String,
    before: Option<String>,
    now: Option<String>,
}

/// How the steps differ from those of a reference.
pub(crate) struct ReferenceComparison {
    name: String,
    steps: usize,
    /// Milliseconds that a step of the reference takes.
    before_ms: f64,
    /// Milliseconds that a step takes now.
    now_ms: f64,
    /// The 95 % interval of the change, in percent of the reference.
    interval: Option<(f64, f64)>,
    changed: Vec<ChangedCondition>,
    /// Shares of time in which threads had no processor, before and now, where they are known.
    delays: Option<(f64, f64)>,
}

impl Reference {
    /// Reads the reference.
    ///
    /// # Errors
    /// The errors of the queries; there is no step in the window.
    pub(crate) async fn read(client: &mut Client, name: &str, window: Option<StepWindow>) -> Result<Self> {
        let steps = step_reader::read(client, name, window).await?;
        comparable(&steps, name)?;
        let conditions = conditions(client, &steps).await?;
        let name = window.map_or_else(|| name.to_owned(), |window| format!("steps {window}"));
        Ok(Self { name, steps, conditions })
    }

    /// Why rules cannot use this reference; None where they can.
    pub(super) fn too_few(&self) -> Option<String> {
        let count = self.steps.count();
        (count < MIN_STEPS).then(|| format!("{count} steps of {} are too few: the rule needs {MIN_STEPS}", self.name))
    }

    /// The rows for $reference in SQL: pid, part, the median of that part (s), and the share of the time in which threads waited for a
    /// processor. A rank that the reference does not have gets the medians of all of its ranks.
    pub(super) fn values(&self, of: &DiagnosedSteps) -> String {
        let mut values = Vec::new();
        for process in &of.processes {
            let alike = self.steps.process_of(process.rank);
            let medians = |part: usize| {
                let of_process = |at: usize| {
                    let parts = self.steps.parts[at].iter().map(|parts| seconds(parts[part])).collect();
                    median(parts).unwrap_or(0.0)
                };
                let all = || median((0..self.steps.processes.len()).map(of_process).collect()).unwrap_or(0.0);
                alike.map_or_else(all, of_process)
            };
            let waits = self.steps.run_delay.unwrap_or(0.0);
            for (part, name) in PARTS.iter().enumerate() {
                values.push(format!("({}, '{name}', {:e}, {waits:e})", process.pid, medians(part)));
            }
        }
        values.join(", ")
    }

    /// Compares the steps `now` with the reference.
    ///
    /// # Errors
    /// The query's errors.
    pub(super) async fn against(&self, client: &mut Client, now: &DiagnosedSteps) -> Result<ReferenceComparison> {
        let ms =
            |steps: &DiagnosedSteps| durations(steps).iter().map(|step| seconds(*step) * 1000.0).collect::<Vec<f64>>();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let (before, after) = (ms(&self.steps), ms(now));
        let interval = change_interval(&after, &before).map(|(low, high)| (low * 100.0, high * 100.0));
        Ok(ReferenceComparison {
            name: self.name.clone(),
            steps: self.steps.count(),
            before_ms: mean(&before),
            now_ms: mean(&after),
            interval: interval.filter(|_| before.len() >= MIN_STEPS && after.len() >= MIN_STEPS),
            changed: changed(&self.conditions, &conditions(client, now).await?),
            delays: self.steps.run_delay.zip(now.run_delay),
        })
    }
}

/// # Errors
/// There are only captures, which are not compared.
pub(super) fn comparable(steps: &DiagnosedSteps, name: &str) -> Result<()> {
    if steps.captures == 0 {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{name} has captures and no steps that an agent recorded, so nothing is compared with it"
    ))
    .hint("probe query --with asks two runs at a time, as of gpu.timeline and gpu.kernel_profile"))
}

impl ReferenceComparison {
    /// How many milliseconds longer a step takes now.
    pub(super) fn change_ms(&self) -> f64 {
        self.now_ms - self.before_ms
    }

    pub(super) fn interval(&self) -> Option<(f64, f64)> {
        self.interval
    }

    /// Why the comparison is doubtful: the machine was busier at one of the two times.
    pub(super) fn busier(&self) -> Option<String> {
        let (before, now) = self.unlike_delays()?;
        Some(format!(
            "threads had no processor for {:.0} % of the time there and for {:.0} % here: part of the difference is the \
             machine's",
            before * 100.0,
            now * 100.0
        ))
    }

    /// Whether the machine was busier now than before. None where there is no great difference.
    pub(super) fn is_busier_now(&self) -> Option<bool> {
        self.unlike_delays().map(|(before, now)| now > before)
    }

    fn unlike_delays(&self) -> Option<(f64, f64)> {
        self.delays.filter(|(before, now)| (before - now).abs() >= 0.05)
    }

    pub(super) fn text(&self) -> String {
        let change = self.change_ms();
        let word = if change < 0.0 { "less" } else { "more" };
        let percent = if self.before_ms > 0.0 { change / self.before_ms * 100.0 } else { 0.0 };
        let interval = self.interval.map_or_else(|| ", too few steps for an interval".to_owned(), finding::interval);
        let mut out = format!(
            "against {} ({} steps, {} ms a step on average): {} ms {word} ({percent:+.0} %{interval})\n",
            self.name,
            self.steps,
            finding::show(self.before_ms),
            finding::show(change.abs()),
        );
        if let Some(busier) = self.busier() {
            let _ = writeln!(out, "  {busier}");
        }
        let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "not known".into());
        for of in &self.changed {
            let _ = writeln!(out, "  changed: {} was {}, is {}", of.what, or_none(&of.before), or_none(&of.now));
        }
        out
    }

    pub(super) fn json(&self) -> Value {
        let changed = |of: &ChangedCondition| json!({ "what": of.what, "before": of.before, "now": of.now });
        json!({
            "name": self.name, "steps": self.steps, "step_ms": self.before_ms, "change_ms": self.change_ms(),
            "low": self.interval.map(|(low, _)| low), "high": self.interval.map(|(_, high)| high),
            "busier": self.busier(), "changed": self.changed.iter().map(changed).collect::<Vec<_>>(),
        })
    }
}

/// Rows of `python.environment` of each process, by rank, the newest first.
async fn conditions(client: &mut Client, steps: &DiagnosedSteps) -> Result<AnswerRows> {
    let sql = "SELECT * FROM python.environment WHERE pid IN ($pids) ORDER BY rank, ts DESC";
    ask(client, &steps.fill(sql)).await
}

/// Conditions that differ between the first ranks.
fn changed(before: &AnswerRows, now: &AnswerRows) -> Vec<ChangedCondition> {
    if before.count == 0 || now.count == 0 {
        return Vec::new();
    }
    let known: BTreeMap<&String, Option<String>> =
        before.columns.iter().map(|(name, _)| (name, before.text(name, 0))).collect();
    let of = |name: &String| {
        let (before, now) = (known.get(name)?.clone(), now.text(name, 0));
        let differs = before != now && !NO_CONDITION.contains(&name.as_str());
        differs.then(|| ChangedCondition { what: name.clone(), before, now })
    };
    now.columns.iter().filter_map(|(name, _)| of(name)).collect()
}
