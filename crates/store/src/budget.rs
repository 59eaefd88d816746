//! What happens at the limits. Memory: rows that are in files leave it first; where there are none, the segments that
//! have grown stale longest go. Disk: the journal has its share ([`crate::journal`]), and before a file takes more than is
//! left, the oldest files go. Every row that went is counted.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use probe_proto::v1::{self, record};

use super::disk_state::DiskState;
use super::file_names::numbers_in;
use super::files::ParquetFile;
use super::identity::{Identity, Origin};
use super::store::{Evicted, Store};
use super::table::TableSnapshot;

/// How long somebody who brings more than there is room for is made to wait, at most.
const PATIENCE: Duration = Duration::from_secs(2);

impl Store {
    /// Rows evicted so far, by process and table.
    pub fn evicted(&self) -> Vec<Evicted> {
        let losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = |((identity, place), (rows, last)): (&(Arc<Identity>, usize), &(u64, SystemTime))| {
            let table = self.declared.get(*place)?;
            Some(Evicted { identity: Arc::clone(identity), table, rows: *rows, last: *last })
        };
        let mut all: Vec<Evicted> = losses.iter().filter_map(entry).collect();
        all.sort_by_cached_key(|e| (e.table.full_name(), e.identity.rank, e.identity.pid));
        all
    }

    /// Past this rows leave memory that are in files.
    pub(super) fn soft_limit(&self) -> usize {
        self.limit() / 4 * 3
    }

    /// Resolves when there is room for more rows, or after a while: then what comes makes other rows go.
    pub async fn room(&self) {
        let Some(kept) = self.kept.get() else { return };
        let crowded = || self.memory() > self.limit() / 8 * 7 || kept.journal.crowded();
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
            let oldest = |place: &usize| self.tables[*place].snapshot().flushed.first().map(|flushed| flushed.newest);
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
        let ages = tables.flat_map(|(place, table)| table.unflushed().map(move |s| (s.newest, place, s.id)));
        ages.filter(|(_, _, id)| !being_written(*id)).min().map(|(_, place, id)| (place, id))
    }

    /// Bytes of all files that the store has, and of the one that is being written.
    fn file_bytes(&self, kept: &DiskState) -> u64 {
        let tables = self.snapshot();
        let files = tables.iter().flat_map(|table| table.all_files());
        files.map(|file| file.bytes).sum::<u64>() + kept.unfinished.load(Ordering::Relaxed)
    }

    /// Whether files may take so many bytes more. Those count that a query holds though they are the store's no more.
    pub(super) fn has_room(&self, kept: &DiskState, more: u64) -> bool {
        let held = kept.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
        let held: u64 = held.iter().map(|file| file.bytes).sum();
        self.file_bytes(kept) + held + more <= kept.most_files()
    }

    /// Takes away the oldest files until there is room for `more` bytes. What only a query still holds goes last, and
    /// that query then ends with an error.
    pub(super) fn make_room(&self, kept: &DiskState, more: u64) {
        if self.has_room(kept, more) {
            return;
        }
        let mut over = (self.file_bytes(kept) + more).saturating_sub(kept.most_files());
        let mut files = if over > 0 { self.oldest_files() } else { Vec::new() };
        files.retain(|(_, file)| {
            let goes = over > 0;
            over = over.saturating_sub(file.bytes);
            goes
        });
        self.remove_files(kept, files);
        Self::bury(kept);
        while !self.has_room(kept, more) {
            let mut graveyard = kept.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(file) = (!graveyard.is_empty()).then(|| graveyard.remove(0)) else { return };
            file.had_to_go.store(true, Ordering::Relaxed);
            // One that can't be taken away can't be counted on either.
            let _ = fs::remove_file(&file.path);
        }
    }

    /// Files that nobody reads any more go.
    pub(super) fn bury(kept: &DiskState) {
        let mut graveyard = kept.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
        // One reference is ours: nobody can come by another one.
        graveyard.retain(|file| Arc::strong_count(file) > 1 || fs::remove_file(&file.path).is_err());
    }

    /// All files with the places of their tables, those first whose newest rows were written first.
    fn oldest_files(&self) -> Vec<(usize, Arc<ParquetFile>)> {
        let tables = self.snapshot();
        let of_table = |(place, table): (usize, &Arc<TableSnapshot>)| {
            table.all_files().map(|file| (place, Arc::clone(file))).collect::<Vec<_>>()
        };
        let mut files: Vec<_> = tables.iter().enumerate().flat_map(of_table).collect();
        files.sort_by_key(|(_, file)| numbers_in(&file.path).map_or(u64::MAX, |(_, last)| last));
        files
    }

    fn remove_files(&self, kept: &DiskState, files: Vec<(usize, Arc<ParquetFile>)>) {
        if files.is_empty() {
            return;
        }
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, file) in &files {
            for group in &file.groups {
                let (Some(identity), Some((first, others))) = (&group.identity, group.origins.split_first()) else {
                    continue;
                };
                // Which of its rows are of which stretch is not known any more; that none of them may come back is.
                self.journal_eviction(identity, first, *place, group.rows);
                others.iter().for_each(|origin| self.journal_eviction(identity, origin, *place, 0));
                count(&mut losses, Arc::clone(identity), *place, group.rows);
            }
        }
        drop(losses);
        // First known, then done: after a crash in between the rows are gone twice, not back again.
        kept.journal.sync();
        for (place, file) in files {
            self.tables[place].remove_file(&file, &self.counters);
            kept.graveyard.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        }
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
            unix_ns: probe_common::clock::unix_ns(),
            appends: self.counters.appends.load(Ordering::Relaxed),
        }));
    }

    /// Takes over what a collector before has counted.
    pub fn restore_evicted(&self, run: &Arc<str>, evicted: &[v1::Evicted]) {
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
