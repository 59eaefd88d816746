//! [`CollectorState`]: the state that all services of a collector share.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use probe_store::Store;
use probe_store::journal::Journal;
use tokio_util::sync::CancellationToken;

use super::events::RunEvents;
use super::finish::RunFinish;
use super::registry::AgentRegistry;
use super::settings::SharedSettings;
use crate::eval::ReplyRoutes;

/// The state that all services of a collector share.
#[derive(Debug)]
pub struct CollectorState {
    /// The run with its number.
    pub(super) run: Arc<str>,
    pub(super) directory: PathBuf,
    pub(super) command: String,
    pub(super) started_unix_ns: i64,
    /// The addresses of the listeners, set when all of them are bound.
    pub(super) listening: OnceLock<Vec<String>>,
    pub(super) store: Arc<Store>,
    pub(super) journal: Arc<Journal>,
    pub(super) registry: Arc<AgentRegistry>,
    /// What happened; [`RunEvents::record`] adds to it.
    pub(super) events: Arc<RunEvents>,
    pub(super) settings: SharedSettings,
    pub(super) routes: Arc<ReplyRoutes>,
    /// The end of the command, and of the run.
    pub(super) finish: RunFinish,
    /// Cancelled when streams of agents are to end.
    pub(super) stopping: CancellationToken,
}

impl CollectorState {
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
