//! [`AgentDestination`]: batches that come while the collector runs.

use std::sync::Arc;

use probe_proto::v1;
use probe_store::journal::Journal;
use probe_store::{BatchRows, ProcessIdentity};

use super::destination::BatchDestination;
use crate::agent::Agent;
use crate::agent::batches::{BatchSource, ConnectionSuperseded, RowDestination};

/// Batches that come while the collector runs: the agent counts them, the store takes them, and the journal keeps them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AgentDestination<'a> {
    pub agent: &'a Agent,
    pub keep: RowDestination<'a>,
}

impl BatchDestination for AgentDestination<'_> {
    fn journal(&self) -> Option<&Journal> {
        Some(self.keep.journal)
    }

    /// Two connections of one agent may bring a batch at the same time, so the agent decides with its state locked.
    fn has(&self, _from: &BatchSource<'_>) -> bool {
        false
    }

    fn store(
        &mut self,
        from: &BatchSource<'_>,
        identity: &Arc<ProcessIdentity>,
        rows: BatchRows,
        batch: v1::Batch,
    ) -> Result<(), ConnectionSuperseded> {
        self.agent.store(from, identity, rows, batch, self.keep)
    }

    fn lose(&mut self, from: &BatchSource<'_>, rows: u64, reason: &'static str) -> Result<(), ConnectionSuperseded> {
        self.agent.count_lost_batch(from, rows, reason, self.keep.journal)
    }
}
