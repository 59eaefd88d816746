//! Diagnoses the collector's run again and again, and notes new warnings in `probe.events`.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use probe_client::Client;
use probe_collector::Collector;
use probe_collector::background::keep_running;
use probe_collector::events::{RunEvent, RunEvents, Severity};
use probe_common::error::Result;
use probe_common::interval_env;
use probe_proto::env::PROBE_DIAGNOSE_EVERY;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::connect;
use crate::diagnose::{self, Diagnosis, DiagnosisSettings, FindingChange, FindingsOverTime};
use crate::small_rows::rows;

/// The default interval between two diagnoses.
const INTERVAL: Duration = Duration::from_secs(60);
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a diagnosis is at least this many times its duration.
const PAUSE_PER_DIAGNOSIS: u32 = 200;

/// The interval between two diagnoses, by PROBE_DIAGNOSE_EVERY; None for never.
///
/// # Errors
/// The value of the variable is no duration.
pub(super) fn interval() -> Result<Option<Duration>> {
    interval_env::read(PROBE_DIAGNOSE_EVERY, INTERVAL, MIN_INTERVAL, "1m, 10m")
}

/// Starts the diagnoses on a thread of their own, since their computation would delay the collector's answers. Dropping the
/// guard ends them.
///
/// # Errors
/// The system's, if it has no threads left.
pub(super) fn watch(collector: &Collector, interval: Duration) -> Result<DropGuard> {
    let (engine, events, run) =
        (Arc::clone(collector.engine()), Arc::clone(collector.events()), collector.run().to_owned());
    let runtime = connect::one_thread()?;
    let over = CancellationToken::new();
    let guard = over.clone().drop_guard();
    thread::Builder::new().name("probe-diagnose".into()).spawn(move || {
        let watch = || {
            let client = Client::of_engine(Arc::clone(&engine));
            FindingsWatch { client, events: Arc::clone(&events), run: run.clone(), interval }.run()
        };
        runtime.block_on(over.run_until_cancelled(keep_running("the diagnosis", &events, watch)));
        // A running query is not waited for.
        runtime.shutdown_background();
    })?;
    Ok(guard)
}

struct FindingsWatch {
    client: Client,
    events: Arc<RunEvents>,
    run: String,
    interval: Duration,
}

impl FindingsWatch {
    async fn run(mut self) {
        let noted =
            texts(&mut self.client, "SELECT details FROM probe.events WHERE kind = 'finding' ORDER BY id").await;
        let mut over_time = FindingsOverTime::restore(noted.iter().map(String::as_str));
        let mut newest = None;
        let mut pause = self.interval;
        // Whether the last diagnosis succeeded.
        let mut succeeded = false;
        loop {
            tokio::time::sleep(pause).await;
            let began = Instant::now();
            // Without a new step there is nothing new to say.
            let last = texts(&mut self.client, "SELECT CAST(MAX(ts) AS VARCHAR) FROM python.steps").await.pop();
            if last.is_some() && last != newest {
                match diagnose::diagnose(&mut self.client, &self.run, &DiagnosisSettings::default()).await {
                    Ok(diagnosis) => {
                        succeeded = true;
                        for change in over_time.update_with(&diagnosis) {
                            self.events.record(event(&change, &diagnosis));
                        }
                    }
                    // At first there are too few steps. Later it may be a limit of queries, and the next one may succeed.
                    Err(error) if succeeded => {
                        succeeded = false;
                        let message = format!("the run could not be diagnosed, so findings may be missing: {error}");
                        self.events.record(RunEvent::new("diagnosis", Severity::Info, message));
                    }
                    Err(_) => {}
                }
                newest = last;
            }
            pause = self.interval.max(began.elapsed() * PAUSE_PER_DIAGNOSIS);
        }
    }
}

/// The first column of an answer, without NULLs; nothing where the query fails.
async fn texts(client: &mut Client, sql: &str) -> Vec<String> {
    let rows = rows(client, sql).await.unwrap_or_default();
    rows.iter().filter_map(|row| row.text(0)).collect()
}

fn event(change: &FindingChange, diagnosis: &Diagnosis) -> RunEvent {
    let event = match change {
        FindingChange::New(finding) => {
            let saving = finding.saving.map(|saving| format!(" ({:.1} ms a step, {:.0} %)", saving.ms, saving.percent));
            let message = format!("{}{}; {}", finding.says, saving.unwrap_or_default(), finding.remedy);
            let event = RunEvent::new("finding", Severity::Warning, message);
            let rank = if let [rank] = finding.ranks[..] { i32::try_from(rank).ok() } else { None };
            if let Some(rank) = rank { event.at_rank(rank) } else { event }
        }
        FindingChange::Gone { says, .. } => RunEvent::new("finding", Severity::Info, format!("gone: {says}")),
    };
    let event = event.with_details(&change.details());
    match diagnosis.steps.numbers.last() {
        Some(step) => event.at_step(*step),
        None => event,
    }
}
