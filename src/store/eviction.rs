//! What happens at the memory limit: the segments that have grown stale longest go, and every row of them is counted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use probe_proto::table::Table;
use probe_proto::tables::TABLES;

use super::Store;
use super::identity::Identity;

/// Rows of one process and table that were evicted.
#[derive(Debug, Clone)]
pub struct Evicted {
    /// The process.
    pub identity: Arc<Identity>,
    /// The table.
    pub table: &'static Table,
    /// How many so far.
    pub rows: u64,
    /// When last.
    pub last: SystemTime,
}

/// All evictions so far, by process and place of the table.
pub(super) type Losses = Mutex<HashMap<(Arc<Identity>, usize), (u64, SystemTime)>>;

impl Store {
    /// Rows evicted so far, by process and table.
    pub fn evicted(&self) -> Vec<Evicted> {
        let losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = |((identity, place), (rows, last)): (&(Arc<Identity>, usize), &(u64, SystemTime))| Evicted {
            identity: Arc::clone(identity),
            table: TABLES[*place],
            rows: *rows,
            last: *last,
        };
        let mut all: Vec<Evicted> = losses.iter().map(entry).collect();
        all.sort_by_key(|e| (e.table.full_name(), e.identity.rank, e.identity.pid));
        all
    }

    /// Evicts until memory is within the limit.
    pub(super) fn evict(&self) {
        // One at a time: two of them would each take away what is enough.
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        while self.memory() > self.limit {
            let Some((place, id)) = self.stalest() else { return };
            // Under the table's lock, and as it is by then: it may have grown.
            let Some(segment) = self.tables[place].remove(id, &self.bytes) else { continue };
            let Some(identity) = segment.identity.clone() else { continue };
            let loss = losses.entry((identity, place)).or_insert((0, SystemTime::UNIX_EPOCH));
            loss.0 += segment.rows as u64;
            loss.1 = SystemTime::now();
        }
    }

    /// The segment, growing ones included, whose newest row came longest ago: table and id.
    fn stalest(&self) -> Option<(usize, u64)> {
        let tables = self.snapshot();
        let tables = tables.iter().enumerate();
        let ages = tables.flat_map(|(place, table)| table.segments().map(move |s| (s.newest, place, s.id)));
        ages.min().map(|(_, place, id)| (place, id))
    }
}
