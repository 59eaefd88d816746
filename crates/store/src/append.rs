//! Appending: adds rows to memory, and evicts rows past its limits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::identity::{BatchOrigin, ProcessIdentity};
use super::rows::BatchRows;
use super::store::Store;

/// Segments are evicted whole, so one may take no more than the memory limit divided by this.
const SEGMENTS_IN_LIMIT: usize = 32;

impl Store {
    /// Appends the rows of a batch of one process. Never waits for a query; past the memory limit it evicts rows. Returns the
    /// append's number, which counts over all tables; None where there was nothing to append.
    pub fn append(&self, identity: &Arc<ProcessIdentity>, origin: BatchOrigin, rows: BatchRows) -> Option<u64> {
        let index = self.declared.index_of(rows.table())?;
        if rows.is_empty() {
            return None;
        }
        let segment_bytes = (self.limit() / SEGMENTS_IN_LIMIT).min(self.segment_bytes.load(Ordering::Relaxed));
        let appended = self.tables[index].append(identity, origin, rows, segment_bytes, &self.counters);
        if self.memory() > self.soft_limit() {
            self.unload();
        }
        if let Some(disk) = self.disk.get()
            && (appended.sealed || self.memory() > self.soft_limit())
        {
            disk.wake();
        }
        if self.memory() > self.limit() {
            self.evict();
        }
        Some(appended.number)
    }
}
