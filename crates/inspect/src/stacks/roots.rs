//! Which readings of a running thread are torn: made of frames of different moments.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use probe_proto::v1::ThreadStack;

/// How often a torn reading is repeated at once.
pub(super) const AGAIN: usize = 3;

/// The outermost frame of each thread. A reading with another outermost frame was torn, unless the next reading has the same.
#[derive(Debug, Default)]
pub(super) struct ThreadRoots(HashMap<Option<u32>, ThreadRoot>);

type ProcessRoot = (String, String);

#[derive(Debug)]
struct ThreadRoot {
    known: Option<ProcessRoot>,
    doubtful: Option<ProcessRoot>,
}

impl ThreadRoots {
    /// Whether a reading is not torn, as far as can be told.
    pub(super) fn is_plausible(&self, thread: &ThreadStack) -> bool {
        let Some(known) = self.0.get(&thread.os_thread).and_then(|root| root.known.as_ref()) else { return true };
        thread.frames.last().is_none_or(|frame| frame.function == known.0 && frame.file == known.1)
    }

    /// Whether a reading that is to be kept is not torn. Its outermost frame is remembered.
    pub(super) fn is_whole(&mut self, thread: &ThreadStack) -> bool {
        let root = thread.frames.last().map(|frame| (frame.function.clone(), frame.file.clone()));
        match self.0.entry(thread.os_thread) {
            Entry::Vacant(entry) => {
                entry.insert(ThreadRoot { known: root, doubtful: None });
                true
            }
            Entry::Occupied(mut entry) => {
                let entry = entry.get_mut();
                let whole = root.is_none() || entry.known.is_none() || root == entry.known || root == entry.doubtful;
                if whole && root.is_some() {
                    (entry.known, entry.doubtful) = (root, None);
                } else if !whole {
                    entry.doubtful = root;
                }
                whole
            }
        }
    }
}
