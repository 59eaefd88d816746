//! The facts of dumps, before a verdict.

use std::collections::{BTreeMap, BTreeSet};

/// A collective that a rank had not finished.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending {
    pub rank: i32,
    pub seq: i64,
    pub operation_type: String,
    /// Types and shapes: "BFloat16 [2048, 5120]"; empty where a dump has no shapes.
    pub tensors: String,
    pub bytes: Option<i64>,
    /// When the collective was issued (ns since 1970).
    pub issued: i64,
    /// Function and line: "train /home/me/train.py:62".
    pub line: Option<String>,
}

/// A process group, as the dumps of all ranks together know it.
#[derive(Debug, Default)]
pub(crate) struct ProcessGroup {
    pub description: Option<String>,
    /// The ranks that a dump lists, and all whose dump has the group.
    pub ranks: BTreeSet<i32>,
    /// Whether a dump lists them.
    pub listed: bool,
    /// The number of the newest collective that each rank issued, where its dump says.
    pub last: BTreeMap<i32, i64>,
    /// Unfinished collectives in order of time.
    pub pending: Vec<Pending>,
}

/// The facts of all dumps of a run.
#[derive(Debug, Default)]
pub(crate) struct DumpFacts {
    /// Dumps of each rank.
    pub dumps: BTreeMap<i32, usize>,
    /// Ranks with a dump that was read in part: their newest operations may be in the rest.
    pub partial: BTreeSet<i32>,
    /// Dumps whose rank is not known.
    pub without_rank: usize,
    pub groups: BTreeMap<String, ProcessGroup>,
    /// Operations in all dumps, finished or not.
    pub operations: i64,
    /// Sends and receives that were not finished.
    pub point_to_point: i64,
}

impl DumpFacts {
    /// Whether there is no dump.
    pub(crate) fn is_empty(&self) -> bool {
        self.dumps.is_empty() && self.without_rank == 0
    }
}
