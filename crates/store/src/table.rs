//! One table's rows: a snapshot that queries load, and the short lock under which the next one is made.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use super::files::ParquetFile;
use super::growing::Growing;
use super::identity::{Identity, Origin};
use super::rows::Rows;
use super::sealed::Sealed;
use super::segment::Segment;

/// A segment of so many rows is sealed.
pub(crate) const SEGMENT_ROWS: usize = 1 << 18;

/// A table at one instant. No row is in two of its parts.
#[derive(Debug, Default, Clone)]
pub struct TableSnapshot {
    /// Rows that are on disk only.
    pub files: Arc<Vec<Arc<ParquetFile>>>,
    /// Rows in memory that are in a file too.
    pub flushed: Arc<Vec<Arc<Flushed>>>,
    /// Segments that grow no more, and are in no file yet.
    pub sealed: Arc<Vec<Arc<Sealed>>>,
    /// Segments that grow.
    pub active: Growing,
}

/// Segments that a file was made of, for as long as memory has room for them.
#[derive(Debug)]
pub struct Flushed {
    /// By row group of the file.
    pub sealed: Vec<Arc<Sealed>>,
    pub file: Arc<ParquetFile>,
    /// Number of the newest append in them.
    pub newest: u64,
    /// What they take in memory.
    pub bytes: usize,
}

impl Flushed {
    /// Whoever reads on reads the file.
    fn leave(&self) {
        for (group, sealed) in self.sealed.iter().enumerate() {
            sealed.leave(&self.file, group);
        }
    }
}

impl TableSnapshot {
    /// All segments in memory.
    pub fn segments(&self) -> impl Iterator<Item = Arc<Segment>> {
        let flushed = self.flushed.iter().flat_map(|flushed| &flushed.sealed);
        flushed.flat_map(|sealed| sealed.segments()).chain(self.unflushed())
    }

    /// Those that are in no file.
    pub fn unflushed(&self) -> impl Iterator<Item = Arc<Segment>> {
        self.sealed.iter().flat_map(|sealed| sealed.segments()).chain(self.active.iter().cloned())
    }

    /// All that were in memory when this was the table, and grow no more.
    pub fn all_sealed(&self) -> impl Iterator<Item = &Arc<Sealed>> {
        self.flushed.iter().flat_map(|flushed| &flushed.sealed).chain(&*self.sealed)
    }

    /// All files, also those whose rows are in memory.
    pub fn all_files(&self) -> impl Iterator<Item = &Arc<ParquetFile>> {
        self.files.iter().chain(self.flushed.iter().map(|flushed| &flushed.file))
    }
}

/// The rows of a table. What they take in memory is kept in a counter over all tables, brought up to date under the
/// table's lock, so that a segment is never taken off it before it has been put on.
#[derive(Debug, Default)]
pub(crate) struct TableStore {
    writer: Mutex<()>,
    snapshot: ArcSwap<TableSnapshot>,
}

/// Counters over all tables.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// What all rows take in memory, in bytes.
    pub memory: AtomicUsize,
    /// What strings of connections take beside them, for as long as a connection or a row needs them.
    pub texts: Arc<AtomicUsize>,
    /// Batches appended.
    pub appends: AtomicU64,
}

/// What came of an append.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appended {
    /// Its number in the order over all tables.
    pub number: u64,
    /// Whether a segment is full.
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

    /// Makes the next snapshot, alone.
    fn change<T>(&self, change: impl FnOnce(&mut TableSnapshot) -> T) -> T {
        let _writer = self.lock();
        let mut next = TableSnapshot::clone(&self.snapshot.load());
        let result = change(&mut next);
        self.snapshot.store(Arc::new(next));
        result
    }

    /// Appends. A segment is sealed when it has [`SEGMENT_ROWS`] or `segment_bytes`.
    pub(crate) fn append(
        &self,
        identity: &Arc<Identity>,
        origin: Origin,
        rows: Rows,
        segment_bytes: usize,
        counters: &Counters,
    ) -> Appended {
        rows.strings.count(&counters.texts);
        self.change(|next| {
            // Under the lock: whoever has had it after us sees the rows of every smaller number.
            let number = counters.appends.fetch_add(1, Ordering::Relaxed);
            let fits = |segment: &Arc<Segment>| segment.rows + rows.len() <= SEGMENT_ROWS;
            let old = next.active.take(identity, &rows);
            let mut sealed = Vec::new();
            let old = match old {
                // A file's row group is a segment, and has a size.
                Some(full) if !fits(&full) => {
                    sealed.push(full);
                    None
                }
                old => old,
            };
            let removed = old.as_ref().map_or(0, |segment| segment.bytes);
            if old.is_none() {
                // Another connection of the same process: what came over the one before is complete.
                sealed.extend(next.active.take_all_of(identity));
            }
            let segment = match old {
                Some(segment) => segment.with(rows, origin.last_seq, number),
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
            let any = !sealed.is_empty();
            seal(&mut next.sealed, sealed);
            Appended { number, sealed: any }
        })
    }

    /// Number of the oldest append that is in no file. It may be of another table's: `appends` as it was before.
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

    /// `sealed` are in `file` by now, each its row group.
    pub(crate) fn flushed(&self, sealed: Vec<Arc<Sealed>>, file: Arc<ParquetFile>) {
        self.change(|next| {
            let written: HashSet<*const Sealed> = sealed.iter().map(Arc::as_ptr).collect();
            Arc::make_mut(&mut next.sealed).retain(|sealed| !written.contains(&Arc::as_ptr(sealed)));
            let segments: Vec<Arc<Segment>> = sealed.iter().flat_map(|sealed| sealed.segments()).collect();
            let newest = segments.iter().map(|segment| segment.newest).max().unwrap_or(0);
            let bytes = segments.iter().map(|segment| segment.bytes).sum();
            Arc::make_mut(&mut next.flushed).push(Arc::new(Flushed { sealed, file, newest, bytes }));
        });
    }

    /// `segment` came whole and is in `file`.
    pub(crate) fn take_in(&self, segment: Arc<Segment>, file: Arc<ParquetFile>, counters: &Counters) {
        self.change(|next| {
            let (newest, bytes) = (segment.newest, segment.bytes);
            counters.memory.fetch_add(bytes, Ordering::Relaxed);
            let sealed = vec![Arc::new(Sealed::new(vec![segment]))];
            Arc::make_mut(&mut next.flushed).push(Arc::new(Flushed { sealed, file, newest, bytes }));
        });
    }

    /// Takes the oldest flushed segments out of memory; false where there are none.
    pub(crate) fn unload(&self, counters: &Counters) -> bool {
        self.change(|next| {
            if next.flushed.is_empty() {
                return false;
            }
            let gone = Arc::make_mut(&mut next.flushed).remove(0);
            Arc::make_mut(&mut next.files).push(Arc::clone(&gone.file));
            gone.leave();
            counters.memory.fetch_sub(gone.bytes, Ordering::Relaxed);
            true
        })
    }

    /// `merged` has the rows of `files`, which are neighbours, and takes their place; `groups` says of which row groups
    /// of them each of its own was made.
    pub(crate) fn replace(
        &self,
        files: &[Arc<ParquetFile>],
        merged: Arc<ParquetFile>,
        groups: &[Vec<(Arc<ParquetFile>, usize)>],
        counters: &Counters,
    ) {
        let is_old = |file: &Arc<ParquetFile>| files.iter().any(|old| Arc::ptr_eq(old, file));
        self.change(|next| {
            let (gone, flushed): (Vec<_>, Vec<_>) = next.flushed.iter().cloned().partition(|s| is_old(&s.file));
            if gone.len() == files.len() {
                // All of them are in memory too, and stay there.
                let place = next.flushed.iter().position(|s| is_old(&s.file)).unwrap_or_default();
                // A query that holds the old segments keeps their memory until it ends. This happens only when small files
                // are merged.
                let of = |(file, group): &(Arc<ParquetFile>, usize)| {
                    let of_file = gone.iter().find(|gone| Arc::ptr_eq(&gone.file, file));
                    of_file.and_then(|of_file| of_file.sealed.get(*group)).map_or_else(Vec::new, |s| s.segments())
                };
                let sealed = groups.iter().map(|groups| Arc::new(Sealed::new(groups.iter().flat_map(of).collect())));
                let sealed = sealed.collect();
                let newest = gone.iter().map(|gone| gone.newest).max().unwrap_or(0);
                let bytes = gone.iter().map(|gone| gone.bytes).sum();
                let mut flushed = flushed;
                flushed.insert(place, Arc::new(Flushed { sealed, file: merged, newest, bytes }));
                next.flushed = Arc::new(flushed);
                return;
            }
            // Some have left memory, or left it meanwhile: then the others do, too.
            gone.iter().for_each(|gone| gone.leave());
            counters.memory.fetch_sub(gone.iter().map(|gone| gone.bytes).sum(), Ordering::Relaxed);
            next.flushed = Arc::new(flushed);
            let place = next.files.iter().position(is_old).unwrap_or(next.files.len());
            let files = Arc::make_mut(&mut next.files);
            files.retain(|file| !is_old(file));
            files.insert(place.min(files.len()), merged);
        });
    }

    /// Takes a file out, with what of it is in memory; None where it has gone already.
    pub(crate) fn remove_file(&self, file: &Arc<ParquetFile>, counters: &Counters) -> Option<()> {
        self.change(|next| {
            if let Some(place) = next.files.iter().position(|known| Arc::ptr_eq(known, file)) {
                Arc::make_mut(&mut next.files).remove(place);
                return Some(());
            }
            let place = next.flushed.iter().position(|flushed| Arc::ptr_eq(&flushed.file, file))?;
            let gone = Arc::make_mut(&mut next.flushed).remove(place);
            counters.memory.fetch_sub(gone.bytes, Ordering::Relaxed);
            Some(())
        })
    }

    /// Takes out the unflushed segment with this id, as it is by now; None where it has gone already.
    pub(crate) fn remove(&self, id: u64, counters: &Counters) -> Option<Arc<Segment>> {
        self.change(|next| {
            let removed = match next.active.remove(id) {
                Some(removed) => removed,
                None => {
                    let place =
                        next.sealed.iter().position(|s| s.segments().first().is_some_and(|one| one.id == id))?;
                    Arc::make_mut(&mut next.sealed).remove(place).segments().pop()?
                }
            };
            counters.memory.fetch_sub(removed.bytes, Ordering::Relaxed);
            Some(removed)
        })
    }
}

fn seal(sealed: &mut Arc<Vec<Arc<Sealed>>>, segments: Vec<Arc<Segment>>) {
    if !segments.is_empty() {
        Arc::make_mut(sealed).extend(segments.into_iter().map(|segment| Arc::new(Sealed::new(vec![segment]))));
    }
}
