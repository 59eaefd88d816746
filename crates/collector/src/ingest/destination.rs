//! [`BatchDestination`]: where the batches of a session go, and how they are accounted for.

use std::sync::Arc;

use probe_proto::v1;
use probe_store::journal::Journal;
use probe_store::{BatchRows, ProcessIdentity};

use crate::agent::batches::{BatchSource, ConnectionSuperseded};

/// Where the batches of a session go, and how they are accounted for.
pub(crate) trait BatchDestination {
    /// The journal that keeps what comes in; None where it comes out of one.
    fn journal(&self) -> Option<&Journal>;

    /// Whether the batch is known to be stored already, so that it need not be decoded.
    fn has(&self, from: &BatchSource<'_>) -> bool;

    /// Takes the rows of a batch, once however often it comes.
    fn store(
        &mut self,
        from: &BatchSource<'_>,
        identity: &Arc<ProcessIdentity>,
        rows: BatchRows,
        batch: v1::Batch,
    ) -> Result<(), ConnectionSuperseded>;

    /// Counts `rows` rows of a batch that can't be stored as lost, once however often the batch comes.
    fn lose(&mut self, from: &BatchSource<'_>, rows: u64, reason: &'static str) -> Result<(), ConnectionSuperseded>;
}
