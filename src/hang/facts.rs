//! The facts of a hang, before a verdict: of dumps, or of the rows of a run.

use std::collections::{BTreeMap, BTreeSet};

/// A collective that a rank had issued and not finished, or that another rank had not.
#[derive(Debug, Clone, Default)]
pub(crate) struct IssuedCollective {
    pub rank: i32,
    pub seq: i64,
    pub operation_type: String,
    /// Types and shapes: "BFloat16 [2048, 5120]"; empty where a dump has no shapes.
    pub tensors: String,
    pub bytes: Option<i64>,
    /// Type of its elements; None where it has none, and of dumps, whose tensors may have several.
    pub element_type: Option<String>,
    /// When the collective was issued (ns since 1970).
    pub issued: i64,
    /// Function and line: "train /home/me/train.py:62".
    pub line: Option<String>,
    pub completion: CollectiveCompletion,
}

/// Whether a collective had finished on a rank.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CollectiveCompletion {
    #[default]
    Unfinished,
    /// The end of the collective is not seen. It was issued so long ago that it would have finished if all ranks had entered it.
    NotSeen,
    /// The collective had finished. It is kept to be compared with what other ranks did under the same number.
    Finished,
}

/// What the facts were read from.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FactSource {
    /// Dumps of the Flight Recorder.
    #[default]
    Dumps,
    /// Rows that agents recorded.
    Rows,
}

/// A process group, as the dumps or rows of all ranks together know it.
#[derive(Debug, Default)]
pub(crate) struct ProcessGroup {
    pub description: Option<String>,
    /// The ranks that a dump lists, and all whose dump or rows have the group.
    pub ranks: BTreeSet<i32>,
    /// Whether these are all: a dump lists them, or as many have rows.
    pub listed: bool,
    /// The number of the newest collective that each rank issued, where that is known.
    pub last: BTreeMap<i32, i64>,
    /// Collectives in order of time.
    pub collectives: Vec<IssuedCollective>,
}

/// The facts of a hang.
#[derive(Debug, Default)]
pub(crate) struct HangFacts {
    pub source: FactSource,
    /// The ranks with dumps or rows; of each, how many dumps it left (1 of rows).
    pub ranks: BTreeMap<i32, usize>,
    /// Ranks with a dump that was read in part, or of which rows were lost: their newest operations may be in the rest.
    pub partial: BTreeSet<i32>,
    /// Dumps whose rank is not known.
    pub without_rank: usize,
    pub groups: BTreeMap<String, ProcessGroup>,
    /// Operations in all dumps or rows, finished or not.
    pub operations: i64,
    /// Sends and receives that were not finished.
    pub point_to_point: i64,
}

impl HangFacts {
    /// Whether there is no dump, or no rank with rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranks.is_empty() && self.without_rank == 0
    }
}
