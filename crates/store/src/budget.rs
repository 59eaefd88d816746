//! Keeps a store within its limits. Memory: rows that are in files leave it first; where there are none, the segments whose
//! newest row is oldest are evicted. Disk: the journal has its share ([`crate::journal`]), and before a file takes more than
//! the rest, the oldest files are removed. Every row that was removed is counted.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use probe_proto::v1::{self, record};

use super::disk_state::DiskState;
use super::file_names::numbers_in;
use super::files::ParquetFile;
use super::identity::{BatchOrigin, ProcessIdentity};
use super::store::{EvictedRows, Store};
use super::table::TableSnapshot;

/// The longest time that [`Store::wait_for_room`] waits.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Store {
    /// Rows evicted so far, by process and table.
    pub fn evicted(&self) -> Vec<EvictedRows> {
        let losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = |((identity, index), (rows, last)): (&(Arc<ProcessIdentity>, usize), &(u64, SystemTime))| {
            let table = self.declared.get(*index)?;
            Some(EvictedRows { identity: Arc::clone(identity), table, rows: *rows, last: *last })
        };
        let mut all: Vec<EvictedRows> = losses.iter().filter_map(entry).collect();
        all.sort_by_cached_key(|e| (e.table.full_name(), e.identity.rank, e.identity.pid));
        all
    }

    /// Bytes of memory past which rows that are in files leave it.
    pub(super) fn soft_limit(&self) -> usize {
        self.limit() / 4 * 3
    }

    /// Resolves when there is room for more rows, or after two seconds: then an append evicts other rows.
    pub async fn wait_for_room(&self) {
        let Some(disk) = self.disk.get() else { return };
        let crowded = || self.memory() > self.limit() / 8 * 7 || disk.journal.crowded();
        if !crowded() || disk.problem().is_some() {
            return;
        }
        let relieved = async {
            loop {
                let relief = self.relief.notified();
                if !crowded() {
                    return;
                }
                disk.wake();
                relief.await;
            }
        };
        // A timeout means that the disk is too slow for the rows that come, or that the limit is too small for one file.
        let _ = tokio::time::timeout(TIMEOUT, relieved).await;
    }

    /// Takes rows that are in files out of memory until it is below the soft limit, in the order in which they were appended.
    pub(super) fn unload(&self) {
        while self.memory() > self.soft_limit() {
            let oldest = |index: &usize| self.tables[*index].snapshot().flushed.first().map(|flushed| flushed.newest);
            let index = (0..self.tables.len()).filter(|index| oldest(index).is_some()).min_by_key(oldest);
            match index {
                Some(index) if self.tables[index].unload(&self.counters) => {}
                _ => return,
            }
        }
    }

    /// Makes room in memory, and evicts rows where no other means is left.
    pub(super) fn evict(&self) {
        // One call at a time: two would each evict as much as is needed.
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        self.unload();
        while self.memory() > self.limit() {
            // Held until the segment is out: segments that are being written must stay.
            let writing = self.disk.get().map(|disk| disk.writing.lock().unwrap_or_else(PoisonError::into_inner));
            let being_written = |id: u64| writing.as_ref().is_some_and(|writing| writing.contains(&id));
            let Some((index, id)) = self.stalest(being_written) else { return };
            // Removed under the table's lock, as the segment is by then: it may have grown.
            let Some(segment) = self.tables[index].remove(id, &self.counters) else { continue };
            drop(writing);
            let (Some(identity), Some(origin)) = (segment.identity.clone(), &segment.origin) else { continue };
            self.journal_eviction(&identity, origin, index, segment.rows);
            count(&mut losses, identity, index, segment.rows);
        }
    }

    /// Index of the table and id of the segment, growing ones included, whose newest row came longest ago.
    fn stalest(&self, being_written: impl Fn(u64) -> bool) -> Option<(usize, u64)> {
        let tables = self.snapshot();
        let tables = tables.iter().enumerate();
        let ages = tables.flat_map(|(index, table)| table.unflushed().map(move |s| (s.newest, index, s.id)));
        ages.filter(|(_, _, id)| !being_written(*id)).min().map(|(_, index, id)| (index, id))
    }

    /// Bytes of all files that the store has, and of the one that is being written.
    fn file_bytes(&self, disk: &DiskState) -> u64 {
        let tables = self.snapshot();
        let files = tables.iter().flat_map(|table| table.all_files());
        files.map(|file| file.bytes).sum::<u64>() + disk.unfinished.load(Ordering::Relaxed)
    }

    /// Whether files may take `more` bytes. Files that the store has given up and a query still holds count as well.
    pub(super) fn has_room(&self, disk: &DiskState, more: u64) -> bool {
        let held = disk.removed_files.lock().unwrap_or_else(PoisonError::into_inner);
        let held: u64 = held.iter().map(|file| file.bytes).sum();
        self.file_bytes(disk) + held + more <= disk.most_files()
    }

    /// Removes the oldest files until there is room for `more` bytes. Files that only a query still holds are removed last, and
    /// that query then ends with an error.
    pub(super) fn make_room(&self, disk: &DiskState, more: u64) {
        if self.has_room(disk, more) {
            return;
        }
        let mut over = (self.file_bytes(disk) + more).saturating_sub(disk.most_files());
        let mut files = if over > 0 { self.oldest_files() } else { Vec::new() };
        files.retain(|(_, file)| {
            let is_removed = over > 0;
            over = over.saturating_sub(file.bytes);
            is_removed
        });
        self.remove_files(disk, files);
        Self::remove_given_up(disk);
        while !self.has_room(disk, more) {
            let mut removed_files = disk.removed_files.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(file) = (!removed_files.is_empty()).then(|| removed_files.remove(0)) else { return };
            file.had_to_go.store(true, Ordering::Relaxed);
            // Where the removal fails, there is nothing else to do: the file is not counted any more.
            let _ = fs::remove_file(&file.path);
        }
    }

    /// Removes given-up files that no query reads any more.
    pub(super) fn remove_given_up(disk: &DiskState) {
        let mut removed_files = disk.removed_files.lock().unwrap_or_else(PoisonError::into_inner);
        // One reference is the list's own; no new one can be made from elsewhere.
        removed_files.retain(|file| Arc::strong_count(file) > 1 || fs::remove_file(&file.path).is_err());
    }

    /// All files with the indices of their tables, ordered by when their newest rows were written.
    fn oldest_files(&self) -> Vec<(usize, Arc<ParquetFile>)> {
        let tables = self.snapshot();
        let of_table = |(index, table): (usize, &Arc<TableSnapshot>)| {
            table.all_files().map(|file| (index, Arc::clone(file))).collect::<Vec<_>>()
        };
        let mut files: Vec<_> = tables.iter().enumerate().flat_map(of_table).collect();
        files.sort_by_key(|(_, file)| numbers_in(&file.path).map_or(u64::MAX, |(_, last)| last));
        files
    }

    fn remove_files(&self, disk: &DiskState, files: Vec<(usize, Arc<ParquetFile>)>) {
        if files.is_empty() {
            return;
        }
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, file) in &files {
            for group in &file.groups {
                let (Some(identity), Some((first, others))) = (&group.identity, group.origins.split_first()) else {
                    continue;
                };
                // It is not known any more which rows belong to which origin. All rows are counted with the first one, and
                // the other origins are recorded too, so that none of their batches is stored again.
                self.journal_eviction(identity, first, *index, group.rows);
                others.iter().for_each(|origin| self.journal_eviction(identity, origin, *index, 0));
                count(&mut losses, Arc::clone(identity), *index, group.rows);
            }
        }
        drop(losses);
        // The journal has the evictions before the files are removed: after a crash in between the rows are counted as lost
        // and do not come back.
        disk.journal.sync();
        for (index, file) in files {
            self.tables[index].remove_file(&file, &self.counters);
            disk.removed_files.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        }
    }

    fn journal_eviction(&self, identity: &ProcessIdentity, origin: &BatchOrigin, index: usize, rows: usize) {
        let (Some(disk), Some(table)) = (self.disk.get(), self.declared.get(index)) else { return };
        disk.journal.record(record::Record::Evicted(v1::Evicted {
            instance: origin.instance.to_string(),
            identity: Some(identity.to_hello()),
            table: table.full_name(),
            first_seq: origin.first_seq,
            last_seq: origin.last_seq,
            rows: rows as u64,
            unix_ns: probe_common::clock::unix_ns(),
            appends: self.counters.appends.load(Ordering::Relaxed),
        }));
    }

    /// Takes over the counts of the collector that kept the run before.
    pub fn restore_evicted(&self, run: &Arc<str>, evicted: &[v1::Evicted]) {
        let tables = self.tables();
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        for evicted in evicted {
            let index = tables.iter().position(|table| table.full_name() == evicted.table);
            let (Some(index), Some(hello)) = (index, &evicted.identity) else { continue };
            let loss = losses.entry((Arc::new(ProcessIdentity::of_hello(run, hello)), index));
            let loss = loss.or_insert((0, SystemTime::UNIX_EPOCH));
            loss.0 += evicted.rows;
            let since_epoch = Duration::from_nanos(evicted.unix_ns.try_into().unwrap_or(0));
            loss.1 = loss.1.max(SystemTime::UNIX_EPOCH + since_epoch);
        }
    }
}

fn count(
    losses: &mut HashMap<(Arc<ProcessIdentity>, usize), (u64, SystemTime)>,
    identity: Arc<ProcessIdentity>,
    index: usize,
    rows: usize,
) {
    let loss = losses.entry((identity, index)).or_insert((0, SystemTime::UNIX_EPOCH));
    loss.0 += rows as u64;
    loss.1 = SystemTime::now();
}
