//! The connection of a console: what answers, what waits for an answer, and how Ctrl-C ends the waiting.

use std::path::{Path, PathBuf};
use std::time::Duration;

use probe_client::discover;
use probe_client::endpoint::{FoundEndpoint, RunLocation};
use probe_client::{AnswerBounds, Client};
use probe_common::error::Result;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, JoinHandle};

use crate::cli::{connect, report};

pub(super) struct ConsoleConnection {
    runtime: Runtime,
    client: Client,
    pub(super) target: FoundEndpoint,
    endpoint: Option<String>,
    token_file: Option<PathBuf>,
    /// Ctrl-C, listened for as long as the console lives: between the end of a line and the start of its work it counts too.
    interrupt: Signal,
}

impl ConsoleConnection {
    pub(super) fn open(endpoint: Option<&str>, token_file: Option<&Path>) -> Result<Self> {
        let (runtime, client, target) = connect(endpoint, token_file)?;
        let interrupt = {
            let _inside = runtime.enter();
            signal(SignalKind::interrupt())?
        };
        let (endpoint, token_file) = (endpoint.map(str::to_owned), token_file.map(Path::to_owned));
        Ok(Self { runtime, client, target, endpoint, token_file, interrupt })
    }

    /// Looks for the run again, and connects to it if it is somewhere else now. Returns whether it is.
    pub(super) fn find_again(&mut self, bounds: AnswerBounds) -> bool {
        if matches!(self.target.location, RunLocation::Directory(_)) {
            return false;
        }
        // Without an ENDPOINT it was the only live run: another one that is live now is not meant.
        let name = self.endpoint.clone().unwrap_or_else(|| self.target.location.name());
        let Ok((runtime, client, target)) = connect(Some(&name), self.token_file.as_deref()) else { return false };
        if target == self.target || target.location.name() != self.target.location.name() {
            return false;
        }
        report::note(format_args!("{} has ended; its rows are read from {}", target.location.name(), target.location));
        std::mem::replace(&mut self.runtime, runtime).shutdown_background();
        (self.client, self.target) = (client, target);
        self.set_bounds(bounds);
        true
    }

    pub(super) fn set_bounds(&mut self, bounds: AnswerBounds) {
        self.client.set_bounds(bounds);
    }

    /// Does work with the client, until it is done or Ctrl-C drops it, which ends it at the other end too.
    pub(super) fn until_interrupted<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T>,
    ) -> Result<Option<T>> {
        self.runtime.block_on(connect::unless(&mut self.interrupt, work(&mut self.client)))
    }

    /// Does work without the client, until it is done or Ctrl-C drops it.
    pub(super) fn wait<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
        self.runtime.block_on(connect::unless(&mut self.interrupt, work))
    }

    /// Forgets a Ctrl-C from before a prompt: it is not for the line that is typed there.
    pub(super) fn forget_interrupts(&mut self) {
        let interrupt = &mut self.interrupt;
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                _ = interrupt.recv() => {}
                () = std::future::ready(()) => {}
            }
        });
    }

    /// Does work with the client, and gives it up after `patience`.
    pub(super) fn within<T>(
        &mut self,
        patience: Duration,
        work: impl AsyncFnOnce(&mut Client) -> Result<T>,
    ) -> Option<T> {
        let work = async { tokio::time::timeout(patience, work(&mut self.client)).await };
        self.runtime.block_on(work).ok()?.ok()
    }

    /// Begins work that goes on by itself; None where the run has ended.
    pub(super) fn begin<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        work: impl FnOnce(Client) -> F,
    ) -> Option<JoinHandle<T>> {
        Some(self.runtime.spawn(work(self.client.another()?)))
    }

    /// Waits up to `patience` for work that was begun; None where it is not done yet.
    pub(super) fn look_at<T>(&self, work: &mut JoinHandle<T>, patience: Duration) -> Option<Result<T, JoinError>> {
        self.runtime.block_on(async { tokio::time::timeout(patience, work).await }).ok()
    }
}

/// Finds ENDPOINT and connects. The runtime has a thread of its own, so that what a cancelled query or snippet leaves
/// behind is sent while nothing waits for anything.
fn connect(endpoint: Option<&str>, token_file: Option<&Path>) -> Result<(Runtime, Client, FoundEndpoint)> {
    let finding = connect::one_thread()?;
    let target = finding.block_on(discover::find(endpoint))?;
    let runtime = match target.location {
        // This process reads the directory.
        RunLocation::Directory(_) => connect::many_threads()?,
        _ => Builder::new_multi_thread().worker_threads(1).enable_all().build()?,
    };
    let client = runtime.block_on(Client::open(&target, token_file))?;
    Ok((runtime, client, target))
}
