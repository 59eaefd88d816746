//! The registry of names as plain data: what an agent writes down of it, and whoever reads it when the process is gone asks.

use std::collections::HashMap;
use std::sync::Arc;

use super::keep::keep;
use super::names::{Found, ModuleInfo, Names, Operation};

/// What was at an address, since when it was known and until when it was there (ticks; `u64::MAX`: it still is).
#[derive(Debug, Clone)]
pub struct Entry {
    /// From here on.
    pub since: u64,
    /// Up to here, exclusive.
    pub until: u64,
    /// Who it is.
    pub info: Arc<ModuleInfo>,
}

keep!(Entry { since, until, info });

/// Who was at an address at a time, by what is known of the address.
pub fn find(entries: &[Entry], at: u64) -> Found {
    let mut stranger = Found { info: None, since: 0, until: u64::MAX };
    for entry in entries {
        if entry.until <= at {
            stranger.since = stranger.since.max(entry.until);
        } else if entry.since > at {
            stranger.until = stranger.until.min(entry.since);
        } else {
            return Found { info: Some(Arc::clone(&entry.info)), since: entry.since, until: entry.until };
        }
    }
    stranger
}

/// Names by number.
pub type Numbered = HashMap<u64, String>;

/// All that [`Names`] is asked for. What is missing is not known, and never guessed.
#[derive(Debug, Default)]
pub struct KnownNames {
    /// When it was written down, as [`Names::generation`].
    pub generation: u64,
    /// By address.
    pub modules: HashMap<u64, Vec<Entry>>,
    /// Class names of module types, by address.
    pub classes: HashMap<u64, Arc<str>>,
    /// Classes of optimizers.
    pub optimizers: Numbered,
    /// By number.
    pub operations: Vec<Operation>,
    /// Ranges.
    pub spans: Numbered,
    /// Logged numbers.
    pub metrics: Numbered,
    /// Lines of the program.
    pub lines: Numbered,
}

keep!(KnownNames { generation, modules, classes, optimizers, operations, spans, metrics, lines });

impl Names for KnownNames {
    fn generation(&self) -> u64 {
        self.generation
    }
    fn module(&self, address: u64, at: u64) -> Found {
        find(self.modules.get(&address).map_or(&[][..], Vec::as_slice), at)
    }
    fn class(&self, address: u64) -> Option<Arc<str>> {
        self.classes.get(&address).cloned()
    }
    fn walk_again(&self, _root: u64) {}
    fn optimizer(&self, id: u64) -> Option<String> {
        self.optimizers.get(&id).cloned()
    }
    fn operation(&self, id: u64) -> Option<Operation> {
        self.operations.get(usize::try_from(id).ok()?).cloned()
    }
    fn named(&self, is_span: bool, id: u64) -> Option<String> {
        if is_span { self.spans.get(&id) } else { self.metrics.get(&id) }.cloned()
    }
    fn line(&self, id: u64) -> Option<String> {
        self.lines.get(&id).cloned()
    }
    fn forget_before(&self, _ticks: u64) {}
}
