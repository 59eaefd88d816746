//! Arrows between slices that are far apart: from a forward operator to its backward, and between the ranks of a collective.
//! Memory is bounded: past it the oldest ends are forgotten, and arrows from them are not drawn.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use probe_export::{Flow, FlowKind, TrackPoint};

/// Ends of each kind that wait for the other.
const MAX_WAITING: usize = 1 << 18;

/// A number that names these parts.
pub(super) fn number(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

struct ForwardOperator {
    thread: i64,
    id: u64,
    from: TrackPoint,
    /// Whether operators of several threads have the number: which of them is meant is then not known.
    is_ambiguous: bool,
}

/// Ends of arrows that wait for the other end.
#[derive(Default)]
pub(super) struct PendingFlows {
    count: u64,
    /// By process and sequence number.
    forward: HashMap<(usize, i64), ForwardOperator>,
    /// By group and number: the part that was drawn last, and how many were drawn.
    collectives: HashMap<u64, (TrackPoint, i64)>,
}

impl PendingFlows {
    /// An id that no other arrow has.
    pub(super) fn new_id(&mut self) -> u64 {
        self.count += 1;
        number(("fresh", self.count))
    }

    /// A forward operator was drawn at `from` with the possible id `id`. The last one of a sequence number is the one that made
    /// the autograd node.
    pub(super) fn forward(&mut self, process: usize, sequence: i64, thread: i64, id: u64, from: TrackPoint) {
        if self.forward.len() >= MAX_WAITING {
            self.forward.clear();
        }
        let is_ambiguous =
            self.forward.get(&(process, sequence)).is_some_and(|before| before.is_ambiguous || before.thread != thread);
        self.forward.insert((process, sequence), ForwardOperator { thread, id, from, is_ambiguous });
    }

    /// The arrow to the backward operator of this number; its outermost takes it.
    pub(super) fn backward(&mut self, process: usize, sequence: i64) -> Option<Flow> {
        let ForwardOperator { id, from, is_ambiguous, .. } = self.forward.remove(&(process, sequence))?;
        let pair = self.new_id();
        (!is_ambiguous).then_some(Flow::From { kind: FlowKind::Backward, id, pair, from })
    }

    /// The arrow to this rank's part of a collective from another's.
    pub(super) fn collective(&mut self, id: u64) -> Flow {
        let pair = self.new_id();
        match self.collectives.get(&id) {
            Some((from, _)) => Flow::From { kind: FlowKind::Collective, id, pair, from: *from },
            None => Flow::Possible(id),
        }
    }

    /// A rank's part of a collective of `size` ranks was drawn.
    pub(super) fn add_part(&mut self, id: u64, size: i64, at: TrackPoint) {
        if self.collectives.len() >= MAX_WAITING {
            self.collectives.clear();
        }
        let drawn = self.collectives.get(&id).map_or(0, |(_, drawn)| *drawn) + 1;
        if drawn < size {
            self.collectives.insert(id, (at, drawn));
        } else {
            self.collectives.remove(&id);
        }
    }
}
