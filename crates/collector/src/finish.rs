//! The end of the command that a launcher started. The launcher reports the end, waits while the run is written, and is told how
//! that went.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use probe_common::error::Error;
use probe_inspect::process_exit::shell_status;
use probe_proto::v1::{FinishOutcome, FinishProgress};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::Status;

/// How often a launcher is told that the run is still being written.
const PROGRESS: Duration = Duration::from_secs(1);

/// The state of the end of a run.
#[derive(Debug, Default)]
pub(super) struct RunFinish {
    /// The command's exit status in shell form (128 + signal).
    command: watch::Sender<Option<i32>>,
    /// How writing the run went.
    outcome: watch::Sender<Option<FinishOutcome>>,
}

impl RunFinish {
    /// Resolves when the command has ended.
    pub(super) async fn command_ended(&self) -> i32 {
        let mut command = self.command.subscribe();
        match command.wait_for(Option::is_some).await.map(|status| *status) {
            Ok(Some(status)) => status,
            _ => std::future::pending().await,
        }
    }

    /// Tells launchers that the run is written, or why it could not be.
    pub(super) fn note_outcome(&self, agents: usize, problem: Option<&Error>) {
        let hint = problem.and_then(Error::hint_text).unwrap_or_default().to_owned();
        let problem = problem.map(Error::to_string).unwrap_or_default();
        let agents = u32::try_from(agents).unwrap_or(u32::MAX);
        self.outcome.send_replace(Some(FinishOutcome { agents, problem, hint }));
    }

    /// Takes the command's wait status, and answers with the progress of writing the run until it is done.
    pub(super) fn note_command_end(&self, wait_status: i32) -> mpsc::Receiver<Result<FinishProgress, Status>> {
        let status = i32::from(shell_status(ExitStatus::from_raw(wait_status)));
        // A launcher that lost its connection reports the end again.
        self.command.send_if_modified(|command| command.is_none() && command.replace(status).is_none());
        let (progress, heard) = mpsc::channel(1);
        let mut outcome = self.outcome.subscribe();
        tokio::spawn(async move {
            loop {
                let outcome = match timeout(PROGRESS, outcome.wait_for(Option::is_some)).await {
                    Ok(Ok(outcome)) => outcome.clone(),
                    Ok(Err(_)) => return,
                    Err(_) => None,
                };
                let is_last = outcome.is_some();
                if progress.send(Ok(FinishProgress { outcome })).await.is_err() || is_last {
                    return;
                }
            }
        });
        heard
    }
}
