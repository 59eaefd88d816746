//! What happens at the limits. Memory: rows that are in files leave it first; where there are none, the segments that
//! have grown stale longest go. Disk: the oldest files go. Every row that went is counted.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use probe_proto::table::Table;
use probe_proto::v1::{self, record};

use super::Store;
use super::files::ParquetFile;
use super::identity::{Identity, Origin};
use super::keep::Kept;
use super::table::TableSnapshot;

/// How long somebody who brings more than there is room for is made to wait, at most.
const PATIENCE: Duration = Duration::from_secs(2);

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

/// Files that are no longer the store's, but that a query may be reading.
pub(super) type Graveyard = Vec<Arc<ParquetFile>>;

impl Store {
    /// Rows evicted so far, by process and table.
    pub fn evicted(&self) -> Vec<Evicted> {
        let losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = |((identity, place), (rows, last)): (&(Arc<Identity>, usize), &(u64, SystemTime))| {
            let table = self.declared.get(*place)?;
            Some(Evicted { identity: Arc::clone(identity), table, rows: *rows, last: *last })
        };
        let mut all: Vec<Evicted> = losses.iter().filter_map(entry).collect();
        all.sort_by_key(|e| (e.table.full_name(), e.identity.rank, e.identity.pid));
        all
    }

    /// Past this rows leave memory that are in files.
    pub(super) fn soft_limit(&self) -> usize {
        self.limit() / 4 * 3
    }

    /// Resolves when there is room for more rows, or after a while: then what comes makes other rows go.
    pub(crate) async fn room(&self) {
        let crowded = || self.memory() > self.limit() / 8 * 7;
        let Some(kept) = self.kept.get() else { return };
        if !crowded() || kept.problem().is_some() {
            return;
        }
        let relieved = async {
            loop {
                let relief = self.relief.notified();
                if !crowded() {
                    return;
                }
                kept.wake();
                relief.await;
            }
        };
        // Too long means that the disk is too slow for what comes, or that the limit is too small for one file.
        let _ = tokio::time::timeout(PATIENCE, relieved).await;
    }

    /// Rows that are in files leave memory until it is below the soft limit, those that were appended first first.
    pub(super) fn unload(&self) {
        while self.memory() > self.soft_limit() {
            let oldest = |place: &usize| self.tables[*place].snapshot().spilled.first().map(|spilled| spilled.newest);
            let place = (0..self.tables.len()).filter(|place| oldest(place).is_some()).min_by_key(oldest);
            match place {
                Some(place) if self.tables[place].unload(&self.counters) => {}
                _ => return,
            }
        }
    }

    /// Makes room in memory, at the cost of rows where nothing else is left.
    pub(super) fn evict(&self) {
        // One at a time: two of them would each take away what is enough.
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        self.unload();
        while self.memory() > self.limit() {
            // Held until the segment is out: what is being written must stay.
            let writing = self.kept.get().map(|kept| kept.writing.lock().unwrap_or_else(PoisonError::into_inner));
            let being_written = |id: u64| writing.as_ref().is_some_and(|writing| writing.contains(&id));
            let Some((place, id)) = self.stalest(being_written) else { return };
            // Under the table's lock, and as it is by then: it may have grown.
            let Some(segment) = self.tables[place].remove(id, &self.counters) else { continue };
            drop(writing);
            let (Some(identity), Some(origin)) = (segment.identity.clone(), &segment.origin) else { continue };
            self.journal_eviction(&identity, origin, place, segment.rows);
            count(&mut losses, identity, place, segment.rows);
        }
    }

    /// The segment, growing ones included, whose newest row came longest ago: table and id.
    fn stalest(&self, being_written: impl Fn(u64) -> bool) -> Option<(usize, u64)> {
        let tables = self.snapshot();
        let tables = tables.iter().enumerate();
        let ages = tables.flat_map(|(place, table)| table.unspilled().map(move |s| (s.newest, place, s.id)));
        ages.filter(|(_, _, id)| !being_written(*id)).min().map(|(_, place, id)| (place, id))
    }

    /// Bytes of all files and of the journal.
    pub(crate) fn disk(&self) -> u64 {
        let files: u64 = self.snapshot().iter().flat_map(|table| table.all_files()).map(|file| file.bytes).sum();
        files + self.journal_size().map_or(0, |(bytes, _)| bytes)
    }

    /// Takes away the oldest files until the run is within its disk limit.
    pub(super) fn within_disk_limit(&self, kept: &Kept) {
        let mut over = self.disk().saturating_sub(kept.disk_limit);
        while over > 0 {
            let Some((place, file)) = self.oldest_file() else { break };
            over = over.saturating_sub(file.bytes);
            self.remove_file(kept, place, file);
        }
        Self::bury(kept);
    }

    /// Files that nobody reads any more go.
    pub(super) fn bury(kept: &Kept) {
        let mut graveyard = kept.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
        // One reference is ours: nobody can come by another one.
        graveyard.retain(|file| Arc::strong_count(file) > 1 || fs::remove_file(&file.path).is_err());
    }

    /// The file that was written first; one whose rows are not in memory too, if there is one.
    fn oldest_file(&self) -> Option<(usize, Arc<ParquetFile>)> {
        let tables = self.snapshot();
        let on_disk_only = |(place, table): (usize, &Arc<TableSnapshot>)| Some((place, table.files.first()?.clone()));
        let in_memory =
            |(place, table): (usize, &Arc<TableSnapshot>)| Some((place, table.spilled.first()?.file.clone()));
        let by_name = |(_, a): &(usize, Arc<ParquetFile>), (_, b): &(usize, Arc<ParquetFile>)| {
            a.path.file_name().cmp(&b.path.file_name())
        };
        let oldest = tables.iter().enumerate().filter_map(on_disk_only).min_by(by_name);
        oldest.or_else(|| tables.iter().enumerate().filter_map(in_memory).min_by(by_name))
    }

    fn remove_file(&self, kept: &Kept, place: usize, file: Arc<ParquetFile>) {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        for group in &file.groups {
            let (Some(identity), Some((first, others))) = (&group.identity, group.origins.split_first()) else {
                continue;
            };
            // Which of its rows are of which stretch is not known any more; that none of them may come back is.
            self.journal_eviction(identity, first, place, group.rows);
            others.iter().for_each(|origin| self.journal_eviction(identity, origin, place, 0));
            count(&mut losses, Arc::clone(identity), place, group.rows);
        }
        drop(losses);
        // First known, then done: after a crash in between the rows are gone twice, not back again.
        kept.journal.sync();
        self.tables[place].remove_file(&file, &self.counters);
        kept.graveyard.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    }

    fn journal_eviction(&self, identity: &Identity, origin: &Origin, place: usize, rows: usize) {
        let (Some(kept), Some(table)) = (self.kept.get(), self.declared.get(place)) else { return };
        kept.journal.record(record::Record::Evicted(v1::Evicted {
            instance: origin.instance.to_string(),
            identity: Some(identity.to_hello()),
            table: table.full_name(),
            first_seq: origin.first_seq,
            last_seq: origin.last_seq,
            rows: rows as u64,
            unix_ns: crate::collector::clock::unix_ns(),
            appends: self.counters.appends.load(std::sync::atomic::Ordering::Relaxed),
        }));
    }

    /// Takes over what a collector before has counted.
    pub(crate) fn restore_evicted(&self, run: &Arc<str>, evicted: &[v1::Evicted]) {
        let tables = self.tables();
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        for evicted in evicted {
            let place = tables.iter().position(|table| table.full_name() == evicted.table);
            let (Some(place), Some(hello)) = (place, &evicted.identity) else { continue };
            let loss = losses.entry((Arc::new(Identity::of_hello(run, hello)), place));
            let loss = loss.or_insert((0, SystemTime::UNIX_EPOCH));
            loss.0 += evicted.rows;
            let at = Duration::from_nanos(evicted.unix_ns.try_into().unwrap_or(0));
            loss.1 = loss.1.max(SystemTime::UNIX_EPOCH + at);
        }
    }
}

fn count(
    losses: &mut HashMap<(Arc<Identity>, usize), (u64, SystemTime)>,
    identity: Arc<Identity>,
    place: usize,
    rows: usize,
) {
    let loss = losses.entry((identity, place)).or_insert((0, SystemTime::UNIX_EPOCH));
    loss.0 += rows as u64;
    loss.1 = SystemTime::now();
}
