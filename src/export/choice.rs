//! [`ExportChoice`]: the processes and steps of a run that are exported.

use probe_client::Client;
use probe_common::error::{Error, Result};

use super::processes::{RecordedProcess, align, check_ranks, processes};
use super::row::each;
use crate::shared_steps::SharedSteps;
use crate::step_window::StepWindow;

/// Default number of steps of a live or recorded run.
const NEWEST_STEPS: i64 = 10;
/// Times past this are from 1970 (ns).
const UNIX: i64 = 1_000_000_000_000_000_000;

/// The requested steps and ranks.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExportRequest {
    /// Steps; None for the newest, or all of an imported trace.
    pub(crate) steps: Option<StepWindow>,
    /// Ranks; None for all.
    pub(crate) ranks: Option<Vec<i64>>,
}

/// The processes and steps that are exported.
#[derive(Debug, Clone)]
pub(crate) struct ExportChoice {
    /// The processes, by rank.
    pub(crate) processes: Vec<RecordedProcess>,
    /// The steps; None for everything there is.
    pub(crate) steps: Option<StepWindow>,
    /// Whether the export is one file for each process, as other tools read them.
    pub(crate) per_rank: bool,
    /// The condition for the steps, in SQL, by the own count of each process.
    pub(super) steps_condition: String,
    /// Why the steps of some processes are chosen by their own numbers, for people.
    pub(crate) not_shared: Option<String>,
    /// The first and the last step of captures.
    pub(crate) captured: Option<(i64, i64)>,
    /// When the steps began and ended in tables of agents, and in captures (ns).
    pub(super) agents_span: Option<(i64, i64)>,
    pub(super) captures_span: Option<(i64, i64)>,
    /// The conditions for the processes and for their captures, in SQL.
    pub(super) processes_condition: String,
    pub(super) captures_condition: String,
    name: String,
}

impl ExportChoice {
    /// Finds the requested processes and steps in the run called `name`.
    ///
    /// # Errors
    /// There is no such rank or step; or the queries'.
    pub(crate) async fn find(client: &mut Client, name: &str, request: &ExportRequest) -> Result<Self> {
        let mut processes = processes(client).await?;
        if processes.is_empty() {
            return Err(Error::failed(format!("{name} has no process with rows")).hint("probe runs lists other runs"));
        }
        if let Some(ranks) = &request.ranks {
            check_ranks(name, &processes, ranks)?;
            processes.retain(|process| process.rank.is_some_and(|rank| ranks.contains(&rank)));
        }
        align(&mut processes);
        let processes_condition = match &request.ranks {
            Some(ranks) => {
                let listed: Vec<String> = ranks.iter().map(i64::to_string).collect();
                format!("rank IN ({})", listed.join(", "))
            }
            None => "true".to_owned(),
        };
        let mut choice = Self {
            processes,
            steps: None,
            steps_condition: "true".to_owned(),
            not_shared: None,
            per_rank: false,
            captured: None,
            agents_span: None,
            captures_span: None,
            captures_condition: processes_condition.clone(),
            processes_condition,
            name: name.to_owned(),
        };
        choice.choose_steps(client, request).await?;
        Ok(choice)
    }

    /// This choice restricted to the process at `index`, for a file of its own.
    #[must_use]
    pub(crate) fn of_process(&self, index: usize) -> Self {
        let process = self.processes[index].clone();
        let condition = process.condition();
        let captures_condition = match &process.capture {
            Some(capture) => format!("{condition} AND capture = '{}'", capture.replace('\'', "''")),
            None => condition.clone(),
        };
        Self {
            processes: vec![process],
            per_rank: true,
            processes_condition: condition,
            captures_condition,
            ..self.clone()
        }
    }

    async fn choose_steps(&mut self, client: &mut Client, request: &ExportRequest) -> Result<()> {
        let range =
            |table: &str, condition: &str| format!("SELECT MIN(step), MAX(step) FROM {table} WHERE {condition}");
        let shared = SharedSteps::read(client).await?;
        let own = range("python.steps", &self.processes_condition);
        let agents = match pair(client, &shared.rewrite(&own)).await? {
            Some(steps) => Some(steps),
            None => pair(client, &own).await?,
        };
        let captured = pair(client, &range("python.operators", &self.captures_condition)).await?;
        self.captured = captured;
        let known = [agents, captured].into_iter().flatten().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        let window = match (request.steps, agents, known) {
            (Some(window), _, Some((first, last))) => {
                let (from, to) = (window.first.unwrap_or(first).max(first), window.last.unwrap_or(last).min(last));
                if from > to {
                    return Err(Error::failed(format!("{} has no step within {window}", self.name))
                        .hint(format!("it has steps {first}..{last}")));
                }
                Some((from, to))
            }
            (Some(window), _, None) => {
                return Err(Error::failed(format!("{} has no step within {window}", self.name))
                    .hint("no step is recorded; without --steps all that is there is written"));
            }
            (None, Some((first, last)), _) => Some(((last - NEWEST_STEPS + 1).max(first), last)),
            (None, None, _) => None,
        };
        let Some((from, to)) = window else { return Ok(()) };
        let window = StepWindow { first: Some(from), last: Some(to) };
        self.steps = Some(window);
        self.steps_condition = shared.condition(|offset| window.before(offset).condition());
        self.not_shared = shared.not_shared();
        let span = |table: &str, condition: &str| {
            format!(
                "SELECT CAST(MIN(ts) AS BIGINT), MAX(CAST(ts AS BIGINT) + CAST(duration * 1e9 AS BIGINT)) FROM {table} \
                 WHERE {condition} AND {}",
                self.steps_condition
            )
        };
        self.agents_span = pair(client, &span("python.steps", &self.processes_condition)).await?;
        self.captures_span = pair(client, &span("python.operators", &self.captures_condition)).await?;
        if self.agents_span.is_none() && self.captures_span.is_none() {
            return Err(self.nothing());
        }
        Ok(())
    }

    /// The error where there is nothing to write.
    pub(super) fn nothing(&self) -> Error {
        match self.steps {
            Some(window) => Error::failed(format!("{} has no rows within steps {window}", self.name))
                .hint("they may have been evicted: probe query \"SELECT * FROM probe.drops\""),
            None => Error::failed(format!("{} has no rows to draw", self.name))
                .hint("probe tables lists what can be recorded"),
        }
    }

    /// Whether times of any process are from 1970 on.
    pub(crate) fn is_unix(&self) -> bool {
        self.processes.iter().any(|process| !process.is_relative)
    }

    /// The zero of written times: a whole second at or before the first time of all, which is `first` by its own clock.
    pub(super) fn time_zero(&self, first: i64) -> i64 {
        if !self.is_unix() {
            return 0;
        }
        let shift = self.processes.iter().filter(|process| !process.is_relative).map(|process| process.shift).min();
        let begins = self.processes.iter().filter_map(|process| Some(process.first? + process.shift)).min();
        let first = if first > UNIX { first + shift.unwrap_or_default().min(0) } else { begins.unwrap_or(first) };
        first.div_euclid(1_000_000_000) * 1_000_000_000
    }
}

async fn pair(client: &mut Client, sql: &str) -> Result<Option<(i64, i64)>> {
    let mut found = None;
    each(client, sql, |row| found = row.int(0).zip(row.int(1))).await?;
    Ok(found)
}
