//! [`Captures`]: one capture at a time, from its call to its rows.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use probe_common::error::{Error, Result};
use probe_common::paths::named;
use probe_proto::v1::{
    At, CaptureBegan, CaptureCall, CaptureEvent, CaptureProgress, Captured, CapturedRows, capture_event::Event,
};
use probe_query::Engine;
use tokio::sync::{Semaphore, mpsc};
use tonic::Status;

use super::agents::{Line, Running};
use super::plan::Plan;
use super::traces;
use crate::eval::Broker;
use crate::events::{Event as Noted, Severity};
use crate::newest_number::newest_number;
use crate::server::peer::Caller;
use crate::shared::Shared;

/// Where traces are until they have been read, in the run's directory.
const DIRECTORY: &str = "captures";
/// Events between a capture and the client's connection.
const EVENTS_AHEAD: usize = 4;

/// What a client gets.
pub(crate) type Events = mpsc::Receiver<Result<CaptureEvent, Status>>;

type Client = mpsc::Sender<Result<CaptureEvent, Status>>;

/// Makes captures.
#[derive(Debug)]
pub(crate) struct Captures {
    shared: Arc<Shared>,
    broker: Arc<Broker>,
    engine: Arc<Engine>,
    directory: PathBuf,
    turn: Arc<Semaphore>,
    /// Whose capture is under way, in words.
    under_way: Mutex<String>,
}

impl Captures {
    /// What a collector that died has left of its captures goes.
    pub(crate) fn new(shared: Arc<Shared>, broker: Arc<Broker>, engine: Arc<Engine>) -> Self {
        let directory = shared.directory.join(DIRECTORY);
        let _ = std::fs::remove_dir_all(&directory);
        let (turn, under_way) = (Arc::new(Semaphore::new(1)), Mutex::default());
        Self { shared, broker, engine, directory, turn, under_way }
    }

    /// Begins a capture; dropping what is returned ends it.
    ///
    /// # Errors
    /// It can't be, or another one is under way. Nothing was touched.
    pub(crate) async fn ask(self: &Arc<Self>, call: CaptureCall, caller: Caller) -> Result<Events> {
        let Ok(permit) = Arc::clone(&self.turn).try_acquire_owned() else {
            let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Err(Error::failed(format!("{under_way} is under way, and there is one at a time"))
                .hint("wait for its end; probe.evals shows who asked for it"));
        };
        let name = format!("capture-{}", self.newest().await? + 1);
        let plan = Plan::new(name, call, &self.shared.registry.live(), &self.directory)?;
        let words = format!("{} of {} steps for {}", plan.name, plan.call.steps, caller.asker.name());
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = words;
        let (client, events) = mpsc::channel(EVENTS_AHEAD);
        let captures = Arc::clone(self);
        tokio::spawn(async move {
            let directory = plan.directory.clone();
            let last = captures.run(plan, caller, &client).await;
            // Nobody else has anything there.
            let _ = tokio::fs::remove_dir_all(directory).await;
            // Whoever is told that it is over may ask for the next one at once.
            drop(permit);
            if let Some(last) = last {
                // They may have gone.
                let _ = client.send(last).await;
            }
        });
        Ok(events)
    }

    /// What the client is told at the end; None where it has gone.
    async fn run(&self, plan: Plan, caller: Caller, client: &Client) -> Option<Result<CaptureEvent, Status>> {
        let name = plan.name.clone();
        let recorded = tokio::select! {
            recorded = self.record(&plan, &caller, client) => recorded,
            () = client.closed() => {
                self.note(&name, &Err(Error::failed("whoever asked has gone")));
                return None;
            }
        };
        let captured = match recorded {
            // From here on nothing of it is in a process any more.
            Ok(reports) => traces::read(plan, reports, Arc::clone(&self.shared.store), client.clone()).await,
            Err(error) => Err(error),
        };
        let captured = captured.map(|processes| Captured { capture: name.clone(), processes });
        self.note(&name, &captured);
        let event = captured.map(|captured| CaptureEvent { event: Some(Event::Captured(captured)) });
        Some(event.map_err(Status::from))
    }

    /// Everything that is done in processes: what each says at the end.
    async fn record(&self, plan: &Plan, caller: &Caller, client: &Client) -> Result<Vec<Line>> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&plan.directory)
            .map_err(|error| named(&plan.directory, error))?;
        let mut check = Running::call(&self.broker, plan, caller, ("check", At::Now))?;
        while check.next().await?.is_some() {}
        let mut begins: Vec<Option<i64>> = vec![None; plan.processes.len()];
        let mut arm = Running::call(&self.broker, plan, caller, ("arm", At::Step))?;
        while let Some((place, line)) = arm.next().await? {
            begins[place] = line.step;
        }
        // By the count of the lowest rank: each has its own.
        let step = begins.iter().flatten().next().copied().unwrap_or(-1);
        let began = CaptureBegan { capture: plan.name.clone(), step, processes: plan.captured() };
        tell(client, Event::Began(began)).await;
        let mut reports = vec![None; plan.processes.len()];
        let mut wait = Running::call(&self.broker, plan, caller, ("wait", At::Now))?;
        while let Some((place, line)) = wait.next().await? {
            let process = &plan.processes[place];
            let (rank, pid) = (process.rank, u32::try_from(process.pid).unwrap_or_default());
            let reading = line.first.is_some();
            let steps = line.steps.unwrap_or_else(|| u32::try_from(line.seconds.len()).unwrap_or_default());
            tell(client, Event::Progress(CaptureProgress { rank, pid, steps, reading })).await;
            if reading {
                reports[place] = Some(line);
            }
        }
        let reports: Option<Vec<Line>> = reports.into_iter().collect();
        reports.ok_or_else(|| Error::failed("a process has not said what came of the capture"))
    }

    fn note(&self, name: &str, captured: &Result<Captured>) {
        let noted = match captured {
            Ok(captured) => {
                let rows: i64 = captured.processes.iter().map(rows_of).sum();
                let first = captured.processes.first().map_or(-1, |of| of.first_step);
                let steps = captured.processes.iter().map(|of| of.steps).max().unwrap_or_default();
                let message = format!("{name}: {steps} steps of {} processes, {rows} rows", captured.processes.len());
                Noted::new("capture", Severity::Info, message).at_step(first)
            }
            Err(error) => Noted::new("capture", Severity::Warning, format!("{name} came to nothing: {error}")),
        };
        self.shared.events.note(noted);
    }

    /// The number of the newest capture that the run has.
    async fn newest(&self) -> Result<i64> {
        let sql = "SELECT MAX(TRY_CAST(split_part(substr(capture, 9), '/', 1) AS BIGINT)) FROM python.captures WHERE capture LIKE 'capture-%'";
        newest_number(&self.engine, sql).await
    }
}

/// Rows of a process.
fn rows_of(of: &CapturedRows) -> i64 {
    of.operators + of.kernels + of.launches + of.memory_events + of.memory_blocks
}

/// A client that has gone ends the capture elsewhere.
async fn tell(client: &Client, event: Event) {
    let _ = client.send(Ok(CaptureEvent { event: Some(event) })).await;
}
