//! Sorts records in bounded memory: what does not fit is written to a nameless file in sorted runs, and merged when it is
//! read. Groups can be read in any order.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;

use super::records::SortRecord;

/// Bytes of records in memory.
const MEMORY: usize = 12 << 20;
/// Bytes that are read of each run at a time, at least.
const MIN_READ_BYTES: usize = 4 << 10;

/// Collects records in any order.
pub(crate) struct RecordSorter<R> {
    directory: Box<Path>,
    memory: usize,
    pending: Vec<R>,
    runs: Vec<SortedRun>,
    file: Option<BufWriter<File>>,
    written: u64,
}

/// A sorted run in the file: where each group begins, and how many records it has.
#[derive(Debug, Default)]
struct SortedRun {
    groups: BTreeMap<u32, (u64, u64)>,
}

impl<R: SortRecord> RecordSorter<R> {
    /// A sorter whose file is in `directory`.
    pub(crate) fn new(directory: &Path) -> Self {
        Self::with_memory(directory, MEMORY)
    }

    pub(crate) fn with_memory(directory: &Path, memory: usize) -> Self {
        let directory = directory.into();
        Self { directory, memory, pending: Vec::new(), runs: Vec::new(), file: None, written: 0 }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn push(&mut self, record: R) -> Result<()> {
        self.pending.push(record);
        if self.pending.len() * size_of::<R>() >= self.memory { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> Result<()> {
        self.pending.sort_unstable_by_key(|record| (record.group(), record.key()));
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file =
                    tempfile::tempfile_in(&self.directory).map_err(|error| io_error_at(&self.directory, error))?;
                self.file.insert(BufWriter::with_capacity(256 << 10, file))
            }
        };
        let mut run = SortedRun::default();
        let mut bytes = Vec::with_capacity(R::BYTES);
        for record in self.pending.drain(..) {
            bytes.clear();
            record.write(&mut bytes);
            file.write_all(&bytes).map_err(|error| io_error_at(&self.directory, error))?;
            run.groups.entry(record.group()).or_insert((self.written, 0)).1 += 1;
            self.written += R::BYTES as u64;
        }
        self.runs.push(run);
        Ok(())
    }

    /// The sorted records, to be read by group.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn finish(mut self) -> Result<SortedRecords<R>> {
        let mut in_memory = BTreeMap::new();
        if self.runs.is_empty() {
            self.pending.sort_unstable_by_key(|record| (record.group(), record.key()));
            for (index, record) in self.pending.iter().enumerate() {
                in_memory.entry(record.group()).or_insert((index, index)).1 = index + 1;
            }
        } else if !self.pending.is_empty() {
            self.spill()?;
        }
        let file = self.file.map(|file| file.into_inner().map_err(std::io::IntoInnerError::into_error)).transpose();
        let file = file.map_err(|error| io_error_at(&self.directory, error))?;
        Ok(SortedRecords { pending: self.pending, in_memory, runs: self.runs, file, failed: Cell::new(false) })
    }
}

/// Sorted records.
pub(crate) struct SortedRecords<R> {
    pending: Vec<R>,
    in_memory: BTreeMap<u32, (usize, usize)>,
    runs: Vec<SortedRun>,
    file: Option<File>,
    /// Whether a record could not be read again.
    failed: Cell<bool>,
}

impl<R: SortRecord> SortedRecords<R> {
    /// Fails if a record could not be read again.
    ///
    /// # Errors
    /// The file could not be read.
    pub(crate) fn check(&self) -> Result<()> {
        if self.failed.get() { Err(Error::failed("what was sorted on disk can't be read again")) } else { Ok(()) }
    }

    /// The groups of all records.
    pub(crate) fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = self.in_memory.keys().copied().collect();
        groups.extend(self.runs.iter().flat_map(|run| run.groups.keys().copied()));
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// The records of one group, in the order of their keys.
    pub(crate) fn group(&self, group: u32) -> RecordGroup<'_, R> {
        let (start, end) = self.in_memory.get(&group).copied().unwrap_or_default();
        let within: Vec<(u64, u64)> = self.runs.iter().filter_map(|run| run.groups.get(&group).copied()).collect();
        let read = (MEMORY / 4 / within.len().max(1)).max(MIN_READ_BYTES) / R::BYTES;
        let cursors = within.into_iter().map(|(offset, left)| RunCursor { offset, left, read, records: Vec::new() });
        let mut group = RecordGroup {
            memory: self.pending[start..end].iter(),
            cursors: cursors.collect(),
            heads: BinaryHeap::new(),
            file: self.file.as_ref(),
            failed: &self.failed,
        };
        (0..group.cursors.len()).for_each(|number| group.advance(number));
        group
    }
}

/// One run's part of a group.
struct RunCursor<R> {
    offset: u64,
    left: u64,
    read: usize,
    /// Records that were read ahead, the next one last.
    records: Vec<R>,
}

/// The key of a run's next record, and the run's number.
type Head = Reverse<((i64, i64, i64), usize)>;

/// Iterates over the records of a group.
pub(crate) struct RecordGroup<'a, R> {
    memory: std::slice::Iter<'a, R>,
    cursors: Vec<RunCursor<R>>,
    heads: BinaryHeap<Head>,
    file: Option<&'a File>,
    failed: &'a Cell<bool>,
}

impl<R: SortRecord> RecordGroup<'_, R> {
    /// Adds the next record of a run to the heads, and reads more of the run where all that was read is used.
    fn advance(&mut self, number: usize) {
        let cursor = &mut self.cursors[number];
        if cursor.records.is_empty() && cursor.left > 0 {
            let count = cursor.read.max(1).min(usize::try_from(cursor.left).unwrap_or(usize::MAX));
            let mut bytes = vec![0; count * R::BYTES];
            if self.file.is_some_and(|file| file.read_exact_at(&mut bytes, cursor.offset).is_ok()) {
                cursor.records.extend(bytes.chunks_exact(R::BYTES).map(R::read).rev());
            } else {
                self.failed.set(true);
            }
            cursor.offset += bytes.len() as u64;
            cursor.left -= count as u64;
        }
        if let Some(record) = cursor.records.last() {
            self.heads.push(Reverse((record.key(), number)));
        }
    }
}

impl<R: SortRecord> Iterator for RecordGroup<'_, R> {
    type Item = R;

    fn next(&mut self) -> Option<R> {
        if let Some(record) = self.memory.next() {
            return Some(*record);
        }
        let Reverse((_, number)) = self.heads.pop()?;
        let record = self.cursors[number].records.pop();
        self.advance(number);
        record
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::records::Launch;

    proptest! {
        #[test]
        fn what_was_spilled_comes_in_the_same_order_as_what_was_not(
            numbers in prop::collection::vec((0..9_i64, any::<i32>()), 0..300),
            memory in 1..4000_usize,
        ) {
            let records: Vec<Launch> = numbers.iter().enumerate().map(|(number, (correlation, ts))| Launch {
                correlation: *correlation, thread: 1, ts: i64::from(*ts), end: 0, number: number as i64, graph: 0,
            }).collect();
            let directory = tempfile::tempdir().unwrap();
            let mut sorter = RecordSorter::with_memory(directory.path(), memory);
            records.iter().for_each(|record| sorter.push(*record).unwrap());
            let sorted = sorter.finish().unwrap();
            let mut expected = records;
            expected.sort_by_key(SortRecord::key);
            prop_assert_eq!(sorted.group(0).collect::<Vec<_>>(), expected);
            prop_assert_eq!(sorted.group(1).count(), 0);
        }
    }
}
