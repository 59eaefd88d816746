//! Small files become larger ones. A quiet run writes a file a table every few minutes, and a week of those is
//! thousands of files with a handful of rows each.
//!
//! Neighbours of about the same size are merged, eight or more at a time, so that a row is rewritten a few times in its
//! life. Row groups of one agent become one. The new file is named by the first and last number of those it replaces
//! (`00000003-00000011.parquet`) and appears whole; only then are they removed. A crash in between leaves both, and the
//! names say which files have been replaced ([`super::file_names::superseded`]).

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::sync::Arc;

use probe_common::error::Result;
use probe_common::paths::io_error_at;

use super::disk_state::{DiskState, FILE_ROWS};
use super::file_names::{numbers_in, table_directory};
use super::file_notes::RowGroupNote;
use super::file_reader::GroupReader;
use super::file_writer::write_groups;
use super::files::ParquetFile;
use super::row_group::RowGroup;
use super::schema::arrow_schema;
use super::store::Store;
use super::table::{SEGMENT_ROWS, TableSnapshot};

/// Number of files of about the same size that are worth a merge.
pub(super) const NEIGHBOURS: usize = 8;
/// Files whose numbers of rows lie between the same two powers of 8 (2 to this power) are of about the same size.
const TIER_BITS: u32 = 3;
/// Rows of a batch on its way from file to file.
const BATCH_ROWS: usize = 8192;

impl Store {
    /// Merges all files that can be merged, `least` or more at a time.
    pub(super) fn merge_files(&self, disk: &DiskState, least: usize) -> Result<()> {
        for index in 0..self.tables.len() {
            let most = MergeLimits { memory: (self.limit() / 8) as u64, disk: disk.most_file() };
            while let Some(files) = mergeable(&self.tables[index].snapshot(), least, most) {
                // For a while there are both copies. No rows may be removed for that.
                if !self.has_room(disk, files.iter().map(|file| file.bytes).sum()) {
                    break;
                }
                self.merge_into_one(disk, index, &files)?;
                Self::remove_given_up(disk);
            }
        }
        Ok(())
    }

    fn merge_into_one(&self, disk: &DiskState, index: usize, files: &[Arc<ParquetFile>]) -> Result<()> {
        let Some(table) = self.declared.get(index) else { return Ok(()) };
        let (Some(first), Some(last)) = (files.first().and_then(numbers), files.last().and_then(numbers)) else {
            return Ok(());
        };
        let directory = table_directory(&disk.directory, table);
        let name = format!("{:08}-{:08}.parquet", first.0, last.1);
        let groups = by_agent(files);
        let row_group = |(file, group): &GroupInFile| file.groups[*group].clone();
        let notes = groups.iter().map(|groups| {
            let groups: Vec<RowGroup> = groups.iter().map(row_group).collect();
            RowGroupNote::merged(&groups.iter().collect::<Vec<_>>(), table)
        });
        let rows = |groups: &Vec<GroupInFile>| groups.iter().map(|(file, group)| file.groups[*group].rows).sum();
        let largest: usize = groups.iter().map(rows).max().unwrap_or(0);
        let schema = arrow_schema(table);
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        write_groups(&directory, &name, table, notes.collect(), largest, &|_| (), |number, write| {
            for (file, group) in &groups[number] {
                for batch in GroupReader::open(file, *group, &columns, &schema, BATCH_ROWS, |_| None, |_| ())? {
                    write(&batch?)?;
                }
            }
            Ok(())
        })?;
        // The new file is checked before the old ones are removed, by opening it as any reader of the directory does.
        let path = directory.join(name);
        let merged = ParquetFile::open(&path, table).and_then(|merged| {
            let rows: usize = files.iter().map(|file| file.whole().rows).sum();
            let merged_rows = merged.whole().rows;
            let wrong = format!("{} has {merged_rows} rows instead of {rows}", path.display());
            if merged_rows == rows { Ok(merged) } else { Err(probe_common::error::Error::failed(wrong)) }
        });
        let merged = match merged {
            Ok(merged) => merged,
            Err(error) => {
                // A wrong file must not replace right ones.
                fs::remove_file(&path).map_err(|error| io_error_at(&path, error))?;
                return Err(error);
            }
        };
        self.tables[index].replace(files, Arc::new(merged), &groups, &self.counters);
        disk.removed_files.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(files.iter().cloned());
        Ok(())
    }
}

/// A row group: its file, and its number in the file.
type GroupInFile = (Arc<ParquetFile>, usize);

/// The row groups of `files` in lists: each list is of one agent, has no more rows than a segment, and becomes one group.
fn by_agent(files: &[Arc<ParquetFile>]) -> Vec<Vec<GroupInFile>> {
    let mut merged: Vec<(Vec<GroupInFile>, usize)> = Vec::new();
    // The newest list of each agent, so that row groups stay in order.
    let mut newest = HashMap::new();
    for file in files {
        for (number, group) in file.groups.iter().enumerate() {
            let agent = (group.identity.clone(), group.origins.first().map(|origin| Arc::clone(&origin.instance)));
            let index = newest.entry(agent).or_insert(usize::MAX);
            let entry = (Arc::clone(file), number);
            match merged.get_mut(*index) {
                Some((groups, rows)) if *rows + group.rows <= SEGMENT_ROWS => {
                    groups.push(entry);
                    *rows += group.rows;
                }
                _ => {
                    *index = merged.len();
                    merged.push((vec![entry], group.rows));
                }
            }
        }
    }
    merged.into_iter().map(|(groups, _)| groups).collect()
}

/// The oldest files that should become one: neighbours, of which either all are in memory too or none.
fn mergeable(table: &TableSnapshot, least: usize, most: MergeLimits) -> Option<Vec<Arc<ParquetFile>>> {
    let flushed: Vec<Arc<ParquetFile>> = table.flushed.iter().map(|flushed| Arc::clone(&flushed.file)).collect();
    let memory: Vec<u64> = table.flushed.iter().map(|flushed| flushed.bytes as u64).collect();
    let on_disk = vec![0; table.files.len()];
    [(&*table.files, on_disk), (&flushed, memory)].into_iter().find_map(|(files, memory)| {
        let facts: Vec<MergeFacts> = files
            .iter()
            .map(|file| {
                let whole = file.groups.iter().all(|group| group.identity.is_some() && !group.origins.is_empty());
                (file.whole().rows, file.bytes, whole && file.ours && numbers(file).is_some())
            })
            .collect();
        let mut range = run(&facts, least, most.disk)?;
        // Merged segments leave memory together, so they have a limit there.
        while memory[range.clone()].iter().sum::<u64>() > most.memory && range.len() > 1 {
            range.end -= 1;
        }
        (range.len() >= least.max(2)).then(|| files[range].to_vec())
    })
}

/// The limits of a merged file, in bytes.
#[derive(Debug, Clone, Copy)]
struct MergeLimits {
    memory: u64,
    disk: u64,
}

/// Rows and bytes of a file, and whether it may be merged.
type MergeFacts = (usize, u64, bool);

/// The first run of `least` files or more of about the same size or smaller, and of `most_bytes` together; small sizes
/// first.
fn run(files: &[MergeFacts], least: usize, most_bytes: u64) -> Option<Range<usize>> {
    let tier = |rows: usize| rows.max(1).ilog2() / TIER_BITS;
    (0..=tier(FILE_ROWS)).find_map(|most| {
        let mut start = 0;
        while start < files.len() {
            let (mut rows, mut bytes) = (0, 0);
            let fits = |(more, more_bytes, may): &&MergeFacts| {
                rows += more;
                bytes += more_bytes;
                *may && tier(*more) <= most && rows <= FILE_ROWS && bytes <= most_bytes
            };
            let length = files[start..].iter().take_while(fits).count();
            let sizes = || files[start..start + length].iter().map(|(rows, ..)| *rows);
            // A large file is not rewritten for a few more rows.
            let worth = sizes().max().is_some_and(|largest| largest <= sizes().sum::<usize>() / 2);
            if length >= least.max(2) && worth {
                return Some(start..start + length);
            }
            start += length.max(1);
        }
        None
    })
}

/// The first and last number in a file's name.
fn numbers(file: &Arc<ParquetFile>) -> Option<(u64, u64)> {
    numbers_in(&file.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_a_size_are_merged() {
        let run = |files: &[MergeFacts], least| super::run(files, least, 1000);
        let small = [(20, 10, true); 10];
        assert_eq!(run(&small, 8), Some(0..10));
        assert_eq!(run(&small[..7], 8), None);
        // A large file is not merged, and the files on both sides of it are not neighbours.
        let mut files = vec![(20, 10, true); 5];
        files.push((900_000, 900, true));
        files.extend([(20, 10, true); 7]);
        assert_eq!(run(&files, 8), None);
        files.push((20, 10, true));
        assert_eq!(run(&files, 8), Some(6..14));
        // A file that can't be merged separates neighbours.
        files[9].2 = false;
        assert_eq!(run(&files, 8), None);
        // Never more rows than a file has, nor more bytes.
        assert_eq!(run(&[(FILE_ROWS / 2, 10, true); 9], 2), Some(0..2));
        assert_eq!(run(&[(20, 400, true); 9], 2), Some(0..2));
    }
}
