//! What dumps say, before anybody judges.

use std::collections::{BTreeMap, BTreeSet};

/// A collective that a rank had not finished.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending {
    pub rank: i32,
    pub seq: i64,
    pub operation_type: String,
    /// "BFloat16 [2048, 5120]"; empty where a dump has no shapes.
    pub tensors: String,
    pub bytes: Option<i64>,
    /// When it was issued (nanoseconds).
    pub issued: i64,
    /// "train /home/me/train.py:62".
    pub line: Option<String>,
}

/// A process group, as the dumps of all ranks together know it.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub description: Option<String>,
    /// Its ranks, where a dump lists them; and any whose dump has the group.
    pub ranks: BTreeSet<i32>,
    /// The number of the newest collective that each rank issued, where its dump says.
    pub last: BTreeMap<i32, i64>,
    /// In order of time.
    pub pending: Vec<Pending>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Dumps of each rank.
    pub dumps: BTreeMap<i32, usize>,
    /// Dumps whose rank is not known.
    pub without_rank: usize,
    pub groups: BTreeMap<String, Group>,
    /// Sends and receives that were not finished.
    pub point_to_point: i64,
}

impl Facts {
    /// There is no dump.
    pub(crate) fn is_empty(&self) -> bool {
        self.dumps.is_empty() && self.without_rank == 0
    }
}
