//! The end of a collector: agents say Bye, the run is written, and only then is the socket removed. So a command reaches the run
//! at any moment, live or from its directory.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use probe_common::error::{Error, Result};
use probe_store::runs::{RunInfo, RunState, file_bytes, last_step};
use probe_store::{journal, write_system};
use tokio::time::timeout;

use super::collector::Collector;
use super::events::{RunEvent, Severity};
use super::process_exits;
use super::shared::CollectorState;

/// How long live agents are given to send what they have and say Bye.
const BYE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long streams that are told to end may take.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long queries that run at the end may still take.
const CALLS_TIMEOUT: Duration = Duration::from_secs(1);

impl Collector {
    /// Waits a little for live agents to say Bye, writes the run directory, and removes the socket.
    ///
    /// # Errors
    /// The run directory could not be written. The collector is gone all the same.
    pub async fn stop(self, exit_status: Option<i32>) -> Result<()> {
        let Self { shared, keeper, system, reservation, mut info, sampling, servers, .. } = self;
        let _ = timeout(BYE_TIMEOUT, shared.until(|shared| shared.registry.live().is_empty())).await;
        process_exits::wait_for_exits(&shared).await;
        let going_on = shared.registry.live().len();
        shared.stopping.cancel();
        let _ = timeout(STREAMS_TIMEOUT, shared.until(|shared| shared.registry.open_streams() == 0)).await;
        describe(&mut info, &shared, exit_status);
        if let Some(status) = exit_status {
            shared.events.record(command_ended(status, going_on));
        }
        let directory = reservation.directory().to_owned();
        let (journal, store) = (Arc::clone(&shared.journal), Arc::clone(&shared.store));
        let written = tokio::task::spawn_blocking(move || {
            sampling.finish();
            let written = keeper.finish().and_then(|()| write_system(&directory, &store.tables(), &system));
            journal.finish();
            if written.is_err() {
                // A file that small may find room. The reader of the journal counts what is lost.
                info.state = RunState::Lost;
                let _ = info.write(&directory);
            }
            written?;
            // run.json says that the run has ended only when all of it is in files, and only then the journal is removed.
            info.last_step = last_step(&directory);
            info.bytes = Some(file_bytes(&directory));
            info.write(&directory)?;
            journal::remove(&directory)
        });
        let written = written.await.unwrap_or_else(|error| Err(Error::caused(error)));
        let written = written.map_err(|error| {
            let hint = error.hint_text().map(str::to_owned);
            let what = Error::failed(format!("the run was not written to {}", shared.directory.display()));
            let what = what.because(error);
            hint.map_or(what.clone(), |hint| what.hint(hint))
        });
        shared.finish.note_outcome(shared.registry.all().len(), written.as_ref().err());
        servers.stop(CALLS_TIMEOUT).await;
        drop(reservation);
        written
    }
}

/// The event of the end of the command that the run is of. `going_on`: processes that it started in the background, and that have not
/// ended with it.
fn command_ended(status: i32, going_on: usize) -> RunEvent {
    let is_whole = status == 0 && going_on == 0;
    let severity = if is_whole { Severity::Info } else { Severity::Warning };
    let rest = match going_on {
        0 => String::new(),
        1 => "; 1 process goes on, and what it does from now on is not recorded".to_owned(),
        more => format!("; {more} processes go on, and what they do from now on is not recorded"),
    };
    let details = serde_json::json!({ "exit_status": status, "processes_going_on": going_on });
    RunEvent::new("command end", severity, format!("the command ended with status {status}{rest}"))
        .with_details(&details)
}

/// Fills in what is known of the run when it ends.
fn describe(info: &mut RunInfo, shared: &CollectorState, exit_status: Option<i32>) {
    info.state = RunState::Ended;
    info.ended = Some(Timestamp::now());
    info.exit_status = exit_status;
    let agents = shared.registry.all();
    if info.command.is_empty()
        && let Some(first) = agents.first()
    {
        info.command = first.state().about.command.clone();
    }
    for agent in agents {
        let state = agent.state();
        info.agents += 1;
        info.ranks.extend(state.identity.rank);
        info.agent_versions.insert(state.about.agent_version.clone());
        info.python_versions.insert(state.about.python_version.clone());
        info.torch_versions.insert(state.about.torch_version.clone());
    }
}
