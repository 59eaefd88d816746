//! A table's segments that grow, one a process and connection.
//!
//! Each append makes the next snapshot of its table. They lie in groups by process, so that it copies one group and shares
//! the others: what an append costs must not grow with the number of processes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::identity::Identity;
use super::rows::Rows;
use super::segment::Segment;

/// Groups; some hundred processes are a few each.
const GROUPS: usize = 32;

/// A table's growing segments, one for each process and connection.
#[derive(Debug, Default, Clone)]
pub struct Growing {
    /// None where there are none: an empty list that all share would be counted by all.
    groups: [Option<Arc<Vec<Arc<Segment>>>>; GROUPS],
}

impl Growing {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.groups.iter().flatten().flat_map(|group| group.iter())
    }

    /// Takes out the one that rows of this process and connection belong in.
    pub(super) fn take(&mut self, identity: &Identity, rows: &Rows) -> Option<Arc<Segment>> {
        self.remove_first(group_of(Some(identity)), |segment| segment.takes(identity, rows))
    }

    /// Takes out all of a process.
    pub(super) fn take_all_of(&mut self, identity: &Identity) -> Vec<Arc<Segment>> {
        let of = |segment: &Segment| segment.identity.as_deref() == Some(identity);
        std::iter::from_fn(|| self.remove_first(group_of(Some(identity)), of)).collect()
    }

    /// Takes out the one with this id.
    pub(super) fn remove(&mut self, id: u64) -> Option<Arc<Segment>> {
        (0..GROUPS).find_map(|group| self.remove_first(group, |segment| segment.id == id))
    }

    /// Takes out all, those that began first before the others.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Segment>> {
        let mut all: Vec<Arc<Segment>> = self.iter().cloned().collect();
        all.sort_by_key(|segment| segment.id);
        *self = Self::default();
        all
    }

    /// Adds one.
    pub(super) fn push(&mut self, segment: Arc<Segment>) {
        let group = self.groups[group_of(segment.identity.as_deref())].get_or_insert_default();
        Arc::make_mut(group).push(segment);
    }

    fn remove_first(&mut self, group: usize, which: impl Fn(&Segment) -> bool) -> Option<Arc<Segment>> {
        let there = self.groups[group].as_mut()?;
        let place = there.iter().position(|segment| which(segment))?;
        let found = Arc::make_mut(there).remove(place);
        if there.is_empty() {
            self.groups[group] = None;
        }
        Some(found)
    }
}

fn group_of(identity: Option<&Identity>) -> usize {
    let mut hasher = DefaultHasher::new();
    identity.hash(&mut hasher);
    hasher.finish() as usize % GROUPS
}
