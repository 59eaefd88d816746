//! One table's rows: a snapshot that queries load, and the short lock under which the next one is made.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::files::ParquetFile;
use super::identity::{Identity, Origin};
use super::rows::Rows;
use super::segment::Segment;

/// A segment of so many rows is sealed.
pub(crate) const SEGMENT_ROWS: usize = 1 << 18;

/// A table at one instant.
#[derive(Debug, Default, Clone)]
pub(crate) struct TableSnapshot {
    /// What a run directory holds.
    pub(crate) files: Arc<Vec<Arc<ParquetFile>>>,
    /// Segments that grow no more.
    pub(crate) sealed: Arc<Vec<Arc<Segment>>>,
    /// Segments that grow, one a process.
    pub(crate) active: Vec<Arc<Segment>>,
}

impl TableSnapshot {
    /// All segments in memory.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.sealed.iter().chain(&self.active)
    }
}

/// The rows of a table. What they take in memory is kept in a counter over all tables, brought up to date under the
/// table's lock, so that a segment is never taken off it before it has been put on.
#[derive(Debug, Default)]
pub(crate) struct TableStore {
    writer: Mutex<()>,
    snapshot: ArcSwap<TableSnapshot>,
}

impl TableStore {
    /// A table whose rows are in files.
    pub(crate) fn of_files(files: Vec<Arc<ParquetFile>>) -> Self {
        let snapshot = TableSnapshot { files: Arc::new(files), ..TableSnapshot::default() };
        Self { writer: Mutex::default(), snapshot: ArcSwap::from_pointee(snapshot) }
    }

    /// The table now.
    pub(crate) fn snapshot(&self) -> Arc<TableSnapshot> {
        self.snapshot.load_full()
    }

    /// Appends; `number` makes the order of appends over all tables. A segment is sealed when it has
    /// [`SEGMENT_ROWS`] or `segment_bytes`.
    pub(crate) fn append(
        &self,
        identity: &Arc<Identity>,
        origin: Origin,
        rows: Rows,
        number: u64,
        segment_bytes: usize,
        memory: &AtomicUsize,
    ) {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = TableSnapshot::clone(&self.snapshot.load());
        let place = next.active.iter().position(|segment| segment.takes(identity, &rows));
        let old = place.map(|place| next.active.remove(place));
        let removed = old.as_ref().map_or(0, |segment| segment.bytes);
        if old.is_none() {
            // Another connection of the same process: what came over the one before is complete.
            let (ended, active) = next.active.into_iter().partition(|s| s.identity.as_ref() == Some(identity));
            next.active = active;
            seal(&mut next.sealed, ended);
        }
        let segment = match old {
            Some(segment) => segment.with(rows, origin.last_seq, number),
            None => Segment::new(Some(Arc::clone(identity)), Some(origin), rows, number),
        };
        memory.fetch_add(segment.bytes, Ordering::Relaxed);
        memory.fetch_sub(removed, Ordering::Relaxed);
        let segment = Arc::new(segment);
        if segment.rows >= SEGMENT_ROWS || segment.bytes >= segment_bytes {
            seal(&mut next.sealed, vec![segment]);
        } else {
            next.active.push(segment);
        }
        self.snapshot.store(Arc::new(next));
    }

    /// Takes out the segment with this id, as it is by now; None where it has gone already.
    pub(crate) fn remove(&self, id: u64, memory: &AtomicUsize) -> Option<Arc<Segment>> {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = TableSnapshot::clone(&self.snapshot.load());
        let removed = if let Some(place) = next.active.iter().position(|segment| segment.id == id) {
            next.active.remove(place)
        } else {
            let place = next.sealed.iter().position(|segment| segment.id == id)?;
            Arc::make_mut(&mut next.sealed).remove(place)
        };
        memory.fetch_sub(removed.bytes, Ordering::Relaxed);
        self.snapshot.store(Arc::new(next));
        Some(removed)
    }
}

fn seal(sealed: &mut Arc<Vec<Arc<Segment>>>, segments: Vec<Arc<Segment>>) {
    if !segments.is_empty() {
        Arc::make_mut(sealed).extend(segments);
    }
}
