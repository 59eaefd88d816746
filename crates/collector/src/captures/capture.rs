//! [`CaptureRunner`]: one capture at a time, from its call to its rows.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use probe_proto::v1::{
    At, CaptureBegan, CaptureCall, CaptureEvent, CaptureProgress, Captured, CapturedRows, capture_event::Event,
};
use probe_query::QueryEngine;
use tokio::sync::{Semaphore, mpsc};
use tonic::Status;

use super::agents::{ProgressLine, RunningCapture};
use super::plan::CapturePlan;
use super::traces;
use crate::eval::SnippetBroker;
use crate::events::{RunEvent as Noted, Severity};
use crate::newest_number::newest_number;
use crate::server::peer::Caller;
use crate::shared::CollectorState;

/// The directory, in that of the run, that has traces until they are read.
const DIRECTORY: &str = "captures";
/// Events between a capture and the client's connection.
const MAX_QUEUED_EVENTS: usize = 4;

/// The events that a client gets.
pub(crate) type CaptureEvents = mpsc::Receiver<Result<CaptureEvent, Status>>;

type CaptureClient = mpsc::Sender<Result<CaptureEvent, Status>>;

/// Makes captures.
#[derive(Debug)]
pub(crate) struct CaptureRunner {
    shared: Arc<CollectorState>,
    broker: Arc<SnippetBroker>,
    engine: Arc<QueryEngine>,
    directory: PathBuf,
    turn: Arc<Semaphore>,
    /// The running capture, and who asked for it, in words.
    under_way: Mutex<String>,
}

impl CaptureRunner {
    /// Removes traces that a collector has left that died.
    pub(crate) fn new(shared: Arc<CollectorState>, broker: Arc<SnippetBroker>, engine: Arc<QueryEngine>) -> Self {
        let directory = shared.directory.join(DIRECTORY);
        let _ = std::fs::remove_dir_all(&directory);
        let (turn, under_way) = (Arc::new(Semaphore::new(1)), Mutex::default());
        Self { shared, broker, engine, directory, turn, under_way }
    }

    /// Begins a capture, which ends when the returned events are dropped.
    ///
    /// # Errors
    /// The call is not valid, or another capture is running. Nothing was touched.
    pub(crate) async fn ask(self: &Arc<Self>, call: CaptureCall, caller: Caller) -> Result<CaptureEvents> {
        let Ok(permit) = Arc::clone(&self.turn).try_acquire_owned() else {
            let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Err(Error::failed(format!("another capture is running: {under_way}"))
                .hint("wait for its end; probe.evals shows who started it"));
        };
        let name = format!("capture-{}", self.newest().await? + 1);
        let plan = CapturePlan::new(name, call, &self.shared.registry.live(), &self.directory)?;
        let words = format!("{} of {} steps for {}", plan.name, plan.call.steps, caller.asker.name());
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = words;
        let (client, events) = mpsc::channel(MAX_QUEUED_EVENTS);
        let captures = Arc::clone(self);
        tokio::spawn(async move {
            let directory = plan.directory.clone();
            let last = captures.run(plan, caller, &client).await;
            // The directory has nothing but this capture.
            let _ = tokio::fs::remove_dir_all(directory).await;
            // Before the client is told that the capture is over: it may ask for the next one at once.
            drop(permit);
            if let Some(last) = last {
                // The client may have gone.
                let _ = client.send(last).await;
            }
        });
        Ok(events)
    }

    /// Makes the capture. Returns the last event of the client; None where the client has gone.
    async fn run(
        &self,
        plan: CapturePlan,
        caller: Caller,
        client: &CaptureClient,
    ) -> Option<Result<CaptureEvent, Status>> {
        let name = plan.name.clone();
        let recorded = tokio::select! {
            recorded = self.record(&plan, &caller, client) => recorded,
            () = client.closed() => {
                self.note(&name, &Err(Error::failed("the client has disconnected")));
                return None;
            }
        };
        let captured = match recorded {
            // The processes are done; the rest happens in the collector.
            Ok(reports) => traces::read(plan, reports, Arc::clone(&self.shared.store), client.clone()).await,
            Err(error) => Err(error),
        };
        let captured = captured.map(|processes| Captured { capture: name.clone(), processes });
        self.note(&name, &captured);
        let event = captured.map(|captured| CaptureEvent { event: Some(Event::Captured(captured)) });
        Some(event.map_err(Status::from))
    }

    /// Does all that happens in processes. Returns the last line of each.
    async fn record(&self, plan: &CapturePlan, caller: &Caller, client: &CaptureClient) -> Result<Vec<ProgressLine>> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&plan.directory)
            .map_err(|error| io_error_at(&plan.directory, error))?;
        let mut check = RunningCapture::call(&self.broker, plan, caller, ("check", At::Now))?;
        while check.next().await?.is_some() {}
        let mut begins: Vec<Option<i64>> = vec![None; plan.processes.len()];
        let mut arm = RunningCapture::call(&self.broker, plan, caller, ("arm", At::Step))?;
        while let Some((index, line)) = arm.next().await? {
            begins[index] = line.step;
        }
        // By the count of the lowest rank: each rank has a count of its own.
        let step = begins.iter().flatten().next().copied().unwrap_or(-1);
        let began = CaptureBegan { capture: plan.name.clone(), step, processes: plan.captured() };
        tell(client, Event::Began(began)).await;
        let mut reports = vec![None; plan.processes.len()];
        let mut wait = RunningCapture::call(&self.broker, plan, caller, ("wait", At::Now))?;
        while let Some((index, line)) = wait.next().await? {
            let process = &plan.processes[index];
            let (rank, pid) = (process.rank, u32::try_from(process.pid).unwrap_or_default());
            let reading = line.first.is_some();
            let steps = line.steps.unwrap_or_else(|| u32::try_from(line.seconds.len()).unwrap_or_default());
            tell(client, Event::Progress(CaptureProgress { rank, pid, steps, reading })).await;
            if reading {
                reports[index] = Some(line);
            }
        }
        let reports: Option<Vec<ProgressLine>> = reports.into_iter().collect();
        reports.ok_or_else(|| Error::failed("a process did not report the result of the capture"))
    }

    fn note(&self, name: &str, captured: &Result<Captured>) {
        let noted = match captured {
            Ok(captured) => {
                let rows: i64 = captured.processes.iter().map(rows_of).sum();
                let first = captured.processes.first().map_or(-1, |process| process.first_step);
                let steps = captured.processes.iter().map(|process| process.steps).max().unwrap_or_default();
                let message = format!("{name}: {steps} steps of {} processes, {rows} rows", captured.processes.len());
                Noted::new("capture", Severity::Info, message).at_step(first)
            }
            Err(error) => Noted::new("capture", Severity::Warning, format!("{name} failed: {error}")),
        };
        self.shared.events.record(noted);
    }

    /// The number of the newest capture that the run has.
    async fn newest(&self) -> Result<i64> {
        let sql = "SELECT MAX(TRY_CAST(split_part(substr(capture, 9), '/', 1) AS BIGINT)) FROM python.captures WHERE capture LIKE 'capture-%'";
        newest_number(&self.engine, sql).await
    }
}

/// Number of rows of a process.
fn rows_of(process: &CapturedRows) -> i64 {
    process.operators + process.kernels + process.launches + process.memory_events + process.memory_blocks
}

/// Sends an event. A client that has gone ends the capture in `run`.
async fn tell(client: &CaptureClient, event: Event) {
    let _ = client.send(Ok(CaptureEvent { event: Some(event) })).await;
}
