//! A table's growing segments, one for each process and connection.
//!
//! Each append makes the next snapshot of its table. Segments are grouped by process, so that an append copies one group and
//! shares the others: its cost must not grow with the number of processes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::identity::ProcessIdentity;
use super::rows::BatchRows;
use super::segment::Segment;

/// Number of groups: some hundred processes are a few in each.
const GROUPS: usize = 32;

/// A table's growing segments, one for each process and connection.
#[derive(Debug, Default, Clone)]
pub struct GrowingSegments {
    /// None for a group without segments: all empty groups would count the references of one shared empty list.
    groups: [Option<Arc<Vec<Arc<Segment>>>>; GROUPS],
}

impl GrowingSegments {
    /// All segments.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.groups.iter().flatten().flat_map(|group| group.iter())
    }

    /// Takes out the segment of the process and connection of `rows`.
    pub(super) fn take_segment(&mut self, identity: &ProcessIdentity, rows: &BatchRows) -> Option<Arc<Segment>> {
        self.remove_first(group_of(Some(identity)), |segment| segment.takes(identity, rows))
    }

    /// Takes out all segments of a process.
    pub(super) fn take_all_of(&mut self, identity: &ProcessIdentity) -> Vec<Arc<Segment>> {
        let is_its = |segment: &Segment| segment.identity.as_deref() == Some(identity);
        std::iter::from_fn(|| self.remove_first(group_of(Some(identity)), is_its)).collect()
    }

    /// Takes out the segment with this id.
    pub(super) fn remove(&mut self, id: u64) -> Option<Arc<Segment>> {
        (0..GROUPS).find_map(|group| self.remove_first(group, |segment| segment.id == id))
    }

    /// Takes out all segments, in the order in which they began.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Segment>> {
        let mut all: Vec<Arc<Segment>> = self.iter().cloned().collect();
        all.sort_by_key(|segment| segment.id);
        *self = Self::default();
        all
    }

    /// Adds a segment.
    pub(super) fn push(&mut self, segment: Arc<Segment>) {
        let group = self.groups[group_of(segment.identity.as_deref())].get_or_insert_default();
        Arc::make_mut(group).push(segment);
    }

    fn remove_first(&mut self, group: usize, which: impl Fn(&Segment) -> bool) -> Option<Arc<Segment>> {
        let segments = self.groups[group].as_mut()?;
        let index = segments.iter().position(|segment| which(segment))?;
        let removed = Arc::make_mut(segments).remove(index);
        if segments.is_empty() {
            self.groups[group] = None;
        }
        Some(removed)
    }
}

fn group_of(identity: Option<&ProcessIdentity>) -> usize {
    let mut hasher = DefaultHasher::new();
    identity.hash(&mut hasher);
    hasher.finish() as usize % GROUPS
}
