//! What the files of a run have of each agent and table, which a replay of its journal must not take again.

use std::collections::HashMap;
use std::sync::Arc;

use probe_proto::v1;
use probe_store::journal::replay::BatchRanges;
use probe_store::{ProcessIdentity, Store};

/// What files have of one agent and table.
#[derive(Debug, Default, Clone)]
pub struct WrittenRows {
    /// Batches, by number.
    pub ranges: BatchRanges,
    pub rows: u64,
    /// The identity of the rows.
    identity: Option<Arc<ProcessIdentity>>,
}

impl WrittenRows {
    pub(crate) fn hello(&self) -> v1::Hello {
        self.identity.as_ref().map(|identity| identity.to_hello()).unwrap_or_default()
    }
}

/// What files have, by instance and table.
pub(crate) type AllWritten = HashMap<(String, String), WrittenRows>;

/// Reads which batches the store's files have, by agent and table.
pub(crate) fn written_batches(store: &Store) -> AllWritten {
    let mut found = AllWritten::new();
    for (table, snapshot) in store.tables().into_iter().zip(store.snapshot()) {
        for group in snapshot.all_files().flat_map(|file| &file.groups) {
            let Some(first) = group.origins.first() else { continue };
            let written = found.entry((first.instance.to_string(), table.full_name())).or_default();
            written.ranges.extend(group.origins.iter().map(|origin| (origin.first_seq, origin.last_seq)));
            written.rows += group.rows as u64;
            written.identity.clone_from(&group.identity);
        }
    }
    found
}
