//! Reads a journal that a collector has left, from its oldest file to its newest.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use probe_common::error::Result;
use probe_common::paths::io_error_at;
use probe_proto::v1::{self, record};

use super::{JournalCheckpoint, files, frame};

/// Ranges of batches: the first and last number of each.
pub type BatchRanges = Vec<(u64, u64)>;

/// A journal that a collector has left.
#[derive(Debug, Default)]
pub struct LeftJournal {
    /// The journal's files, oldest first.
    pub files: Vec<PathBuf>,
    /// Number of the next file.
    pub next: u64,
}

/// The result of a replay, besides the records.
#[derive(Debug, Default)]
pub struct ReplayResult {
    /// The sum of all records.
    pub checkpoint: JournalCheckpoint,
    /// Files that end in bytes that are no record, and the number of those bytes. In the newest file they were being written
    /// when the collector died, and were never acknowledged.
    pub damaged: Vec<(PathBuf, usize)>,
}

/// Receives the records of a journal, one by one.
pub trait RecordReceiver {
    /// Replaces all connections, at the head of a file that does not continue the records before it.
    fn restart(&mut self, connections: &[v1::Connection]);
    /// Takes the next record.
    fn receive(&mut self, record: record::Record);
}

/// Looks for a journal in a run directory.
///
/// # Errors
/// The file system's.
pub fn find(run: &Path) -> Result<LeftJournal> {
    let files = files::list(&files::directory(run))?;
    let next = files.last().map_or(0, |(number, _)| number + 1);
    Ok(LeftJournal { files: files.into_iter().map(|(_, path)| path).collect(), next })
}

impl LeftJournal {
    /// Numbers of batches that were evicted, by instance and table: they must not come back.
    pub fn evicted(&self) -> Result<HashMap<(String, String), BatchRanges>> {
        let mut ranges: HashMap<(String, String), BatchRanges> = HashMap::new();
        let mut add = |evicted: v1::Evicted| {
            if evicted.last_seq > 0 {
                let range = (evicted.first_seq, evicted.last_seq);
                ranges.entry((evicted.instance, evicted.table)).or_default().push(range);
            }
        };
        for path in &self.files {
            for record in read(path)? {
                match record.record {
                    Some(record::Record::Checkpoint(checkpoint)) => checkpoint.evicted.into_iter().for_each(&mut add),
                    Some(record::Record::Evicted(evicted)) => add(evicted),
                    _ => {}
                }
            }
        }
        Ok(ranges)
    }

    /// Gives every record to `receiver`, in order, without a sum of them.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn for_each(&self, receiver: &mut impl RecordReceiver) -> Result<()> {
        for path in &self.files {
            for record in read(path)?.filter_map(|record| record.record) {
                match record {
                    record::Record::Checkpoint(checkpoint) => receiver.restart(&checkpoint.connections),
                    record => receiver.receive(record),
                }
            }
        }
        Ok(())
    }

    /// Gives every record to `receiver`, in order, and adds them up.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn replay(&self, receiver: &mut impl RecordReceiver) -> Result<ReplayResult> {
        let mut replayed = ReplayResult::default();
        let mut follows = false;
        for path in &self.files {
            let mut frames = read(path)?;
            for record in frames.by_ref() {
                match &record.record {
                    // The checkpoint repeats the files before it, which have been read. Where it has more than they have, the
                    // disk had taken nothing for a while.
                    Some(record::Record::Checkpoint(checkpoint))
                        if follows && JournalCheckpoint::from_message(checkpoint.clone()) == replayed.checkpoint => {}
                    Some(record::Record::Checkpoint(checkpoint)) => {
                        receiver.restart(&checkpoint.connections);
                        replayed.checkpoint.apply(&record);
                    }
                    _ => replayed.checkpoint.apply(&record),
                }
                if let Some(record) = record.record {
                    receiver.receive(record);
                }
            }
            follows = frames.damaged == 0;
            if frames.damaged > 0 {
                replayed.damaged.push((path.clone(), frames.damaged));
            }
        }
        Ok(replayed)
    }
}

fn read(path: &Path) -> Result<frame::JournalFrames> {
    let file = fs::read(path).map_err(|error| io_error_at(path, error))?;
    Ok(frame::JournalFrames::new(file.into()))
}
