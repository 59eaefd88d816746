//! One table's rows: a snapshot that queries load, and the short lock under which the next one is made.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use super::files::ParquetFile;
use super::growing::GrowingSegments;
use super::identity::{BatchOrigin, ProcessIdentity};
use super::rows::BatchRows;
use super::sealed::SealedRows;
use super::segment::Segment;

/// A segment is sealed when it has this many rows.
pub(crate) const SEGMENT_ROWS: usize = 1 << 18;

/// A table at one instant. Each row is in one of its fields only.
#[derive(Debug, Default, Clone)]
pub struct TableSnapshot {
    /// Files with rows that are on disk only.
    pub files: Arc<Vec<Arc<ParquetFile>>>,
    /// Segments in memory whose rows are in a file too.
    pub flushed: Arc<Vec<Arc<FlushedSegments>>>,
    /// Segments that do not grow any more, and are in no file yet.
    pub sealed: Arc<Vec<Arc<SealedRows>>>,
    /// Segments that grow.
    pub active: GrowingSegments,
}

/// Segments that a file was made of, for as long as memory has room for them.
#[derive(Debug)]
pub struct FlushedSegments {
    /// The segments, by row group of the file.
    pub sealed: Vec<Arc<SealedRows>>,
    pub file: Arc<ParquetFile>,
    /// Number of the newest append in the segments.
    pub newest: u64,
    /// Bytes that the segments take in memory.
    pub bytes: usize,
}

impl FlushedSegments {
    /// Gives up the memory: further reads are from the file.
    fn evict_from_memory(&self) {
        for (group, sealed) in self.sealed.iter().enumerate() {
            sealed.evict_from_memory(&self.file, group);
        }
    }
}

impl TableSnapshot {
    /// All segments in memory.
    pub fn segments(&self) -> impl Iterator<Item = Arc<Segment>> {
        let flushed = self.flushed.iter().flat_map(|flushed| &flushed.sealed);
        flushed.flat_map(|sealed| sealed.segments()).chain(self.unflushed())
    }

    /// All segments that are in no file.
    pub fn unflushed(&self) -> impl Iterator<Item = Arc<Segment>> {
        self.sealed.iter().flat_map(|sealed| sealed.segments()).chain(self.active.iter().cloned())
    }

    /// All segments that do not grow any more and were in memory at the instant of the snapshot.
    pub fn all_sealed(&self) -> impl Iterator<Item = &Arc<SealedRows>> {
        self.flushed.iter().flat_map(|flushed| &flushed.sealed).chain(&*self.sealed)
    }

    /// All files, including those whose rows are in memory.
    pub fn all_files(&self) -> impl Iterator<Item = &Arc<ParquetFile>> {
        self.files.iter().chain(self.flushed.iter().map(|flushed| &flushed.file))
    }
}

/// The rows of a table. Their memory is in a counter over all tables. The counter is updated under the table's lock, so that
/// a segment is never subtracted before it has been added.
#[derive(Debug, Default)]
pub(crate) struct TableStore {
    writer: Mutex<()>,
    snapshot: ArcSwap<TableSnapshot>,
}

/// Counters over all tables.
#[derive(Debug, Default)]
pub(crate) struct StoreCounters {
    /// Bytes that all rows take in memory.
    pub memory: AtomicUsize,
    /// Bytes that strings of connections take in addition, for as long as a connection or a row needs them.
    pub texts: Arc<AtomicUsize>,
    /// Number of batches appended.
    pub appends: AtomicU64,
}

/// The result of an append.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppendResult {
    /// The append's number in the order over all tables.
    pub number: u64,
    /// Whether it sealed a segment.
    pub sealed: bool,
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

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next snapshot, under the table's lock.
    fn change<T>(&self, change: impl FnOnce(&mut TableSnapshot) -> T) -> T {
        let _writer = self.lock();
        let mut next = TableSnapshot::clone(&self.snapshot.load());
        let result = change(&mut next);
        self.snapshot.store(Arc::new(next));
        result
    }

    /// Appends rows. A segment is sealed when it has [`SEGMENT_ROWS`] or `segment_bytes`.
    pub(crate) fn append(
        &self,
        identity: &Arc<ProcessIdentity>,
        origin: BatchOrigin,
        rows: BatchRows,
        segment_bytes: usize,
        counters: &StoreCounters,
    ) -> AppendResult {
        rows.strings.count(&counters.texts);
        self.change(|next| {
            // Numbered under the lock: any later holder of the lock sees the rows of every smaller number.
            let number = counters.appends.fetch_add(1, Ordering::Relaxed);
            let fits = |segment: &Arc<Segment>| segment.rows + rows.len() <= SEGMENT_ROWS;
            let old = next.active.take_segment(identity, &rows);
            let mut sealed = Vec::new();
            let old = match old {
                // A segment becomes a row group of a file, whose size is limited.
                Some(full) if !fits(&full) => {
                    sealed.push(full);
                    None
                }
                old => old,
            };
            let removed = old.as_ref().map_or(0, |segment| segment.bytes);
            if old.is_none() {
                // The rows are of another connection of the same process: segments of the previous one are complete.
                sealed.extend(next.active.take_all_of(identity));
            }
            let segment = match old {
                Some(segment) => segment.with_rows(rows, origin.last_seq, number),
                None => Segment::new(Some(Arc::clone(identity)), Some(origin), rows, number),
            };
            counters.memory.fetch_add(segment.bytes, Ordering::Relaxed);
            counters.memory.fetch_sub(removed, Ordering::Relaxed);
            let segment = Arc::new(segment);
            if segment.rows >= SEGMENT_ROWS || segment.bytes >= segment_bytes {
                sealed.push(segment);
            } else {
                next.active.push(segment);
            }
            let has_sealed = !sealed.is_empty();
            seal(&mut next.sealed, sealed);
            AppendResult { number, sealed: has_sealed }
        })
    }

    /// Number of the oldest append whose rows are in no file; None where all rows are in files. Takes the table's lock, so
    /// that it sees every append that was counted before the call.
    pub(crate) fn oldest_unflushed(&self) -> Option<u64> {
        let _writer = self.lock();
        self.snapshot.load().unflushed().map(|segment| segment.id).min()
    }

    /// Seals all growing segments if `which` holds for one of them.
    pub(crate) fn seal(&self, which: impl Fn(&Segment) -> bool) {
        if self.snapshot.load().active.iter().any(|segment| which(segment)) {
            self.change(|next| {
                let active = next.active.take_all();
                seal(&mut next.sealed, active);
            });
        }
    }

    /// Records that `sealed` were written to `file`, each as a row group.
    pub(crate) fn flushed(&self, sealed: Vec<Arc<SealedRows>>, file: Arc<ParquetFile>) {
        self.change(|next| {
            let written: HashSet<*const SealedRows> = sealed.iter().map(Arc::as_ptr).collect();
            Arc::make_mut(&mut next.sealed).retain(|sealed| !written.contains(&Arc::as_ptr(sealed)));
            let segments: Vec<Arc<Segment>> = sealed.iter().flat_map(|sealed| sealed.segments()).collect();
            let newest = segments.iter().map(|segment| segment.newest).max().unwrap_or(0);
            let bytes = segments.iter().map(|segment| segment.bytes).sum();
            Arc::make_mut(&mut next.flushed).push(Arc::new(FlushedSegments { sealed, file, newest, bytes }));
        });
    }

    /// Adds a segment that came whole and is in `file`.
    pub(crate) fn take_in(&self, segment: Arc<Segment>, file: Arc<ParquetFile>, counters: &StoreCounters) {
        self.change(|next| {
            let (newest, bytes) = (segment.newest, segment.bytes);
            counters.memory.fetch_add(bytes, Ordering::Relaxed);
            let sealed = vec![Arc::new(SealedRows::new(vec![segment]))];
            Arc::make_mut(&mut next.flushed).push(Arc::new(FlushedSegments { sealed, file, newest, bytes }));
        });
    }

    /// Takes the oldest flushed segments out of memory; false if no segment in memory is flushed.
    pub(crate) fn unload(&self, counters: &StoreCounters) -> bool {
        self.change(|next| {
            if next.flushed.is_empty() {
                return false;
            }
            let gone = Arc::make_mut(&mut next.flushed).remove(0);
            Arc::make_mut(&mut next.files).push(Arc::clone(&gone.file));
            gone.evict_from_memory();
            counters.memory.fetch_sub(gone.bytes, Ordering::Relaxed);
            true
        })
    }

    /// Replaces `files`, which are neighbours, by `merged`, which has their rows. `groups` has, for each row group of `merged`,
    /// the row groups from which it was made.
    pub(crate) fn replace(
        &self,
        files: &[Arc<ParquetFile>],
        merged: Arc<ParquetFile>,
        groups: &[Vec<(Arc<ParquetFile>, usize)>],
        counters: &StoreCounters,
    ) {
        let is_old = |file: &Arc<ParquetFile>| files.iter().any(|old| Arc::ptr_eq(old, file));
        self.change(|next| {
            let (gone, flushed): (Vec<_>, Vec<_>) = next.flushed.iter().cloned().partition(|s| is_old(&s.file));
            if gone.len() == files.len() {
                // All files are in memory too, and stay there.
                let index = next.flushed.iter().position(|s| is_old(&s.file)).unwrap_or_default();
                // A query that holds the old segments keeps their memory until it ends. This happens only when small files
                // are merged.
                let segments = |(file, group): &(Arc<ParquetFile>, usize)| {
                    let old = gone.iter().find(|old| Arc::ptr_eq(&old.file, file));
                    old.and_then(|old| old.sealed.get(*group)).map_or_else(Vec::new, |s| s.segments())
                };
                let sealed =
                    groups.iter().map(|groups| Arc::new(SealedRows::new(groups.iter().flat_map(segments).collect())));
                let sealed = sealed.collect();
                let newest = gone.iter().map(|gone| gone.newest).max().unwrap_or(0);
                let bytes = gone.iter().map(|gone| gone.bytes).sum();
                let mut flushed = flushed;
                flushed.insert(index, Arc::new(FlushedSegments { sealed, file: merged, newest, bytes }));
                next.flushed = Arc::new(flushed);
                return;
            }
            // Some files' segments have left memory, perhaps just now: then those of the others leave it too.
            gone.iter().for_each(|gone| gone.evict_from_memory());
            counters.memory.fetch_sub(gone.iter().map(|gone| gone.bytes).sum(), Ordering::Relaxed);
            next.flushed = Arc::new(flushed);
            let index = next.files.iter().position(is_old).unwrap_or(next.files.len());
            let files = Arc::make_mut(&mut next.files);
            files.retain(|file| !is_old(file));
            files.insert(index.min(files.len()), merged);
        });
    }

    /// Removes a file, with its segments in memory; None where it is gone already.
    pub(crate) fn remove_file(&self, file: &Arc<ParquetFile>, counters: &StoreCounters) -> Option<()> {
        self.change(|next| {
            if let Some(index) = next.files.iter().position(|known| Arc::ptr_eq(known, file)) {
                Arc::make_mut(&mut next.files).remove(index);
                return Some(());
            }
            let index = next.flushed.iter().position(|flushed| Arc::ptr_eq(&flushed.file, file))?;
            let gone = Arc::make_mut(&mut next.flushed).remove(index);
            counters.memory.fetch_sub(gone.bytes, Ordering::Relaxed);
            Some(())
        })
    }

    /// Takes out the unflushed segment with this id, as it is by now; None where it is gone already.
    pub(crate) fn remove(&self, id: u64, counters: &StoreCounters) -> Option<Arc<Segment>> {
        self.change(|next| {
            let removed = match next.active.remove(id) {
                Some(removed) => removed,
                None => {
                    let index =
                        next.sealed.iter().position(|s| s.segments().first().is_some_and(|one| one.id == id))?;
                    Arc::make_mut(&mut next.sealed).remove(index).segments().pop()?
                }
            };
            counters.memory.fetch_sub(removed.bytes, Ordering::Relaxed);
            Some(removed)
        })
    }
}

fn seal(sealed: &mut Arc<Vec<Arc<SealedRows>>>, segments: Vec<Arc<Segment>>) {
    if !segments.is_empty() {
        Arc::make_mut(sealed).extend(segments.into_iter().map(|segment| Arc::new(SealedRows::new(vec![segment]))));
    }
}
