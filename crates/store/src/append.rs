//! Appending: rows come into memory, and what is past its limits goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::identity::{Identity, Origin};
use super::rows::Rows;
use super::store::Store;

/// Past the memory limit segments go whole, so none may take more than this part of it.
const SEGMENTS_IN_LIMIT: usize = 32;

impl Store {
    /// Appends the rows of a batch of one process. Never waits for a query; past the memory limit rows go. Returns the
    /// append's number, which counts over all tables; None where there was nothing to append.
    pub fn append(&self, identity: &Arc<Identity>, origin: Origin, rows: Rows) -> Option<u64> {
        let place = self.declared.place(rows.table())?;
        if rows.is_empty() {
            return None;
        }
        let segment_bytes = (self.limit() / SEGMENTS_IN_LIMIT).min(self.segment_bytes.load(Ordering::Relaxed));
        let appended = self.tables[place].append(identity, origin, rows, segment_bytes, &self.counters);
        if self.memory() > self.soft_limit() {
            self.unload();
        }
        if let Some(kept) = self.kept.get()
            && (appended.sealed || self.memory() > self.soft_limit())
        {
            kept.wake();
        }
        if self.memory() > self.limit() {
            self.evict();
        }
        Some(appended.number)
    }
}
