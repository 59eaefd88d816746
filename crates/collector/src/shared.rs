//! [`Shared`]: the state that all services of a collector share.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use probe_store::Store;
use probe_store::journal::Journal;
use tokio_util::sync::CancellationToken;

use super::events::RunEvents;
use super::finish::Finish;
use super::registry::Registry;
use super::settings::SharedSettings;
use crate::eval::Routes;

/// The state that all services of a collector share.
#[derive(Debug)]
pub struct Shared {
    /// The run with its number.
    pub(super) run: Arc<str>,
    pub(super) directory: PathBuf,
    pub(super) command: String,
    pub(super) started_unix_ns: i64,
    /// The addresses of the listeners, set when all of them are bound.
    pub(super) listening: OnceLock<Vec<String>>,
    pub(super) store: Arc<Store>,
    pub(super) journal: Arc<Journal>,
    pub(super) registry: Arc<Registry>,
    /// What happened; [`RunEvents::record`] adds to it.
    pub(super) events: Arc<RunEvents>,
    pub(super) settings: SharedSettings,
    pub(super) routes: Arc<Routes>,
    /// The end of the command, and of the run.
    pub(super) finish: Finish,
    /// Cancelled when streams of agents are to end.
    pub(super) stopping: CancellationToken,
}

impl Shared {
    /// Resolves when `holds` returns true, which is checked whenever an agent comes, goes or reports.
    pub(super) async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let mut changes = self.registry.changes();
        loop {
            changes.mark_unchanged();
            if holds(self) || changes.changed().await.is_err() {
                return;
            }
        }
    }
}
