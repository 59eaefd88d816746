//! A journal that a collector has left, read from its oldest file to its newest.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use probe_common::error::Result;
use probe_common::paths::named;
use probe_proto::v1::{self, record};

use super::{JournalCheckpoint, files, frame};

/// Numbers of batches, first and last of each range.
pub type Ranges = Vec<(u64, u64)>;

/// A journal as it was found.
#[derive(Debug, Default)]
pub struct Left {
    /// Its files, oldest first.
    pub files: Vec<PathBuf>,
    /// Number of the file that would be next.
    pub next: u64,
}

/// What a replay has to tell besides the records.
#[derive(Debug, Default)]
pub struct Replayed {
    /// What all records say.
    pub checkpoint: JournalCheckpoint,
    /// Files that end in something that is no record, and bytes there. In the newest one it is what was being written
    /// when the collector died, and nobody was told that it is kept.
    pub damaged: Vec<(PathBuf, usize)>,
}

/// What is to be done with the records, one by one.
pub trait Take {
    /// Connections as they are now, after the head of a file that does not follow from what was read before.
    fn restart(&mut self, connections: &[v1::Connection]);
    /// The next record.
    fn take(&mut self, record: record::Record);
}

/// Looks for a journal in a run directory.
///
/// # Errors
/// The file system's.
pub fn find(run: &Path) -> Result<Left> {
    let found = files::list(&files::directory(run))?;
    let next = found.last().map_or(0, |(number, _)| number + 1);
    Ok(Left { files: found.into_iter().map(|(_, path)| path).collect(), next })
}

impl Left {
    /// Numbers of batches that were evicted, by instance and table: they must not come back.
    pub fn evicted(&self) -> Result<HashMap<(String, String), Ranges>> {
        let mut found: HashMap<(String, String), Ranges> = HashMap::new();
        let mut add = |evicted: v1::Evicted| {
            if evicted.last_seq > 0 {
                let range = (evicted.first_seq, evicted.last_seq);
                found.entry((evicted.instance, evicted.table)).or_default().push(range);
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
        Ok(found)
    }

    /// Gives every record to `take`, in order, and adds nothing up.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn each(&self, take: &mut impl Take) -> Result<()> {
        for path in &self.files {
            for record in read(path)?.filter_map(|record| record.record) {
                match record {
                    record::Record::Checkpoint(checkpoint) => take.restart(&checkpoint.connections),
                    record => take.take(record),
                }
            }
        }
        Ok(())
    }

    /// Gives every record to `take`, in order, and adds them up.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn replay(&self, take: &mut impl Take) -> Result<Replayed> {
        let mut replayed = Replayed::default();
        let mut follows = false;
        for path in &self.files {
            let mut frames = read(path)?;
            for record in frames.by_ref() {
                match &record.record {
                    // What the files before it say, which have been read. Where it says more, the disk had taken nothing
                    // for a while.
                    Some(record::Record::Checkpoint(checkpoint))
                        if follows && JournalCheckpoint::from_message(checkpoint.clone()) == replayed.checkpoint => {}
                    Some(record::Record::Checkpoint(checkpoint)) => {
                        take.restart(&checkpoint.connections);
                        replayed.checkpoint.apply(&record);
                    }
                    _ => replayed.checkpoint.apply(&record),
                }
                if let Some(record) = record.record {
                    take.take(record);
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

fn read(path: &Path) -> Result<frame::Frames> {
    let file = fs::read(path).map_err(|error| named(path, error))?;
    Ok(frame::Frames::new(file.into()))
}
