//! Finding ENDPOINT, connecting, and Ctrl-C, for all commands that ask a run.

use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;

use probe_client::Client;
use probe_client::discover;
use probe_client::endpoint::{FoundEndpoint, RunLocation};
use probe_common::error::{Error, Result};
use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::status::{CommandStatus, INTERRUPTED};

/// Options of every command that connects.
#[derive(Debug, clap::Args)]
pub(super) struct ConnectOptions {
    /// File with the token for a TCP endpoint
    #[arg(long, value_name = "FILE", env = probe_proto::env::PROBE_TOKEN_FILE, hide_env_values = true)]
    token_file: Option<PathBuf>,
}

impl ConnectOptions {
    pub(super) fn token_file(&self) -> Option<&std::path::Path> {
        self.token_file.as_deref()
    }
}

/// Finds ENDPOINT and runs `work` with its client. Ctrl-C drops the work, which cancels it in the collector too.
pub(super) fn with_client<F>(endpoint: Option<&str>, connection: &ConnectOptions, work: F) -> Result<CommandStatus>
where
    F: AsyncFnOnce(Client, &FoundEndpoint) -> Result<CommandStatus>,
{
    until(INTERRUPTED, endpoint, connection, work)
}

/// Finds ENDPOINT and runs `work` with its client. Ctrl-C ends it with status `interrupted`.
pub(super) fn until<F>(
    interrupted: CommandStatus,
    endpoint: Option<&str>,
    connection: &ConnectOptions,
    work: F,
) -> Result<CommandStatus>
where
    F: AsyncFnOnce(Client, &FoundEndpoint) -> Result<CommandStatus>,
{
    let finding = one_thread()?;
    let target = finding.block_on(discover::find(endpoint))?;
    // A live collector does the work itself; a run's directory is read here, by as many threads as there are cores.
    let runtime = if matches!(target.location, RunLocation::Directory(_)) { many_threads()? } else { finding };
    let status = runtime.block_on(unless_interrupted(interrupted, async {
        let client = Client::open(&target, connection.token_file.as_deref()).await?;
        work(client, &target).await
    }));
    // A file may still be read for an answer that is not needed any more: this does not wait for it.
    runtime.shutdown_background();
    status
}

/// Finds one ENDPOINT of several, and connects.
pub(super) async fn open(endpoint: Option<&str>, connection: &ConnectOptions) -> Result<(Client, FoundEndpoint)> {
    let target = discover::find(endpoint).await?;
    let client = Client::open(&target, connection.token_file.as_deref()).await?;
    Ok((client, target))
}

/// Does work that waits for others, in one thread, until it is done or Ctrl-C drops it and ends with status
/// `interrupted`.
pub(super) fn interruptible_alone(
    interrupted: CommandStatus,
    work: impl Future<Output = Result<CommandStatus>>,
) -> Result<CommandStatus> {
    let runtime = one_thread()?;
    let status = runtime.block_on(unless_interrupted(interrupted, work));
    runtime.shutdown_background();
    status
}

/// Opens ENDPOINT together with the other runs that a query names.
pub(super) async fn open_with(
    endpoint: Option<&str>,
    others: &[(String, String)],
    connection: &ConnectOptions,
) -> Result<(Client, FoundEndpoint)> {
    let target = discover::find(endpoint).await?;
    let mut other_targets = Vec::new();
    for (name, other) in others {
        other_targets.push((name.clone(), discover::find(Some(other)).await?));
    }
    let client = Client::open_with(&target, &other_targets, connection.token_file.as_deref()).await?;
    Ok((client, target))
}

/// Does work for which rows are read in this process, until it is done or Ctrl-C drops it and ends with status
/// `interrupted`.
pub(super) fn interruptible(
    interrupted: CommandStatus,
    work: impl Future<Output = Result<CommandStatus>>,
) -> Result<CommandStatus> {
    let runtime = many_threads()?;
    let status = runtime.block_on(unless_interrupted(interrupted, work));
    runtime.shutdown_background();
    status
}

/// Does work, and drops it when Ctrl-C comes. Ctrl-C is listened for before the work begins, so that it is never too early:
/// dropping the work takes away what it has to (a file half written).
async fn unless_interrupted(
    interrupted: CommandStatus,
    work: impl Future<Output = Result<CommandStatus>>,
) -> Result<CommandStatus> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(unless(&mut interrupt, work).await?.unwrap_or(interrupted))
}

/// Waits for one of several pieces of work under the same `interrupt`. None where Ctrl-C came.
pub(super) async fn unless<T>(interrupt: &mut Signal, work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(None),
        done = work => done.map(Some),
    }
}

/// How much longer than its timeout a request is waited for. The engine that is asked ends a request at its timeout and says
/// so; this is for one from which nothing comes.
const EXTRA_TIMEOUT: Duration = Duration::from_millis(500);

/// Waits for `asked`, but ends with an error soon after `timeout`.
pub(super) async fn within<T>(timeout: Option<Duration>, asked: impl Future<Output = Result<T>>) -> Result<T> {
    let Some(timeout) = timeout else { return asked.await };
    tokio::time::timeout(timeout.saturating_add(EXTRA_TIMEOUT), asked).await.unwrap_or_else(|_| {
        Err(Error::limit(format!("the query did not finish within {}", humantime::format_duration(timeout)))
            .hint("ask for fewer rows or steps; allow more with --timeout"))
    })
}

/// Resolves when standard output is a pipe that has no reader any more, and never otherwise.
pub(super) async fn reader_gone() {
    let is_pipe = std::fs::metadata("/proc/self/fd/1").is_ok_and(|stdout| stdout.file_type().is_fifo());
    // The pipe is only watched: writes to it still wait.
    let watched = || Sender::from_owned_fd_unchecked(std::io::stdout().as_fd().try_clone_to_owned()?);
    if is_pipe && let Ok(stdout) = watched() {
        // The writing end of a pipe has no error but the loss of its reader.
        if stdout.ready(Interest::ERROR).await.is_ok() {
            return;
        }
    }
    std::future::pending().await
}

/// A runtime for a command that mostly waits.
pub(super) fn one_thread() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// A runtime for a process that works.
pub(super) fn many_threads() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().enable_all().build()?)
}
