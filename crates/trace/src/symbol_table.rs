//! The registry of names as plain data: an agent writes it down, and it is read when the process is gone.

use std::collections::HashMap;
use std::sync::Arc;

use super::persist::{Persist, PersistedBytes, persist};
use super::symbol_lookup::{CollectiveOperation, ModuleAtAddress, ModuleInfo, SymbolLookup};

/// A module at an address, from when it was known and until when it was there (ticks; `u64::MAX`: it still is).
#[derive(Debug, Clone)]
pub struct KnownModule {
    /// When the module was known first.
    pub since: u64,
    /// When it was gone (exclusive).
    pub until: u64,
    /// The module.
    pub info: Arc<ModuleInfo>,
}

persist!(KnownModule { since, until, info });

/// The module at an address at a time, by the `entries` of the address.
pub fn find(entries: &[KnownModule], ticks: u64) -> ModuleAtAddress {
    let mut stranger = ModuleAtAddress { info: None, since: 0, until: u64::MAX };
    for entry in entries {
        if entry.until <= ticks {
            stranger.since = stranger.since.max(entry.until);
        } else if entry.since > ticks {
            stranger.until = stranger.until.min(entry.since);
        } else {
            return ModuleAtAddress { info: Some(Arc::clone(&entry.info)), since: entry.since, until: entry.until };
        }
    }
    stranger
}

/// Names by number.
pub type NameTable = HashMap<u64, String>;

/// All names of [`SymbolLookup`]. A missing name is not known, and never guessed.
#[derive(Debug, Default)]
pub struct KnownNames {
    /// The [`SymbolLookup::generation`] when this was written down.
    pub generation: u64,
    /// Modules by address.
    pub modules: HashMap<u64, Vec<KnownModule>>,
    /// Class names of module types, by address.
    pub classes: HashMap<u64, Arc<str>>,
    /// Classes of optimizers.
    pub optimizers: NameTable,
    /// Kinds of collectives, by number.
    pub operations: Vec<CollectiveOperation>,
    /// Names of ranges.
    pub spans: NameTable,
    /// Names of logged numbers.
    pub metrics: NameTable,
    /// Lines of the program.
    pub lines: NameTable,
    /// Files that were saved to, and classes of exceptions that ended a save.
    pub saved: NameTable,
    /// Operators.
    pub operators: NameTable,
}

persist!(KnownNames { generation, modules, classes, optimizers, operations, spans, metrics, lines, saved, operators });

/// A name that was learned: its number or address, and its meaning.
#[derive(Debug)]
pub enum LearnedName<'a> {
    /// The class of an optimizer.
    Optimizer(u64, &'a str),
    /// A range.
    Span(u64, &'a str),
    /// A logged number.
    Metric(u64, &'a str),
    /// A line of the program.
    Line(u64, &'a str),
    /// A file that was saved to, or a class of exceptions that ended a save.
    Saved(u64, &'a str),
    /// An operator.
    Operator(u64, &'a str),
    /// A module type.
    Class(u64, &'a str),
    /// A kind of collective.
    Operation(u64, &'a CollectiveOperation),
    /// A module.
    Module(u64, &'a KnownModule),
    /// The address whose module is gone, and since when (ticks).
    Gone(u64, u64),
}

impl LearnedName<'_> {
    /// Appends an entry of the log; [`KnownNames::learn`] reads it.
    pub fn put(&self, to: &mut Vec<u8>) {
        let mut named = |kind: u8, id: u64, name: &str| {
            kind.put(to);
            id.put(to);
            name.len().put(to);
            to.extend_from_slice(name.as_bytes());
        };
        match *self {
            Self::Optimizer(id, name) => named(0, id, name),
            Self::Span(id, name) => named(1, id, name),
            Self::Metric(id, name) => named(2, id, name),
            Self::Line(id, name) => named(3, id, name),
            Self::Class(id, name) => named(4, id, name),
            Self::Operation(id, operation) => {
                5_u8.put(to);
                id.put(to);
                operation.put(to);
            }
            Self::Module(address, entry) => {
                6_u8.put(to);
                address.put(to);
                entry.put(to);
            }
            Self::Gone(address, ticks) => {
                7_u8.put(to);
                (address, ticks).put(to);
            }
            Self::Saved(id, name) => named(8, id, name),
            Self::Operator(id, name) => named(9, id, name),
        }
    }
}

impl KnownNames {
    /// Takes in an entry of the log. It may be older than this: known names stay. None where the entry makes no sense.
    pub(crate) fn learn(&mut self, entry: &[u8]) -> Option<()> {
        let from = &mut PersistedBytes::new(entry);
        let (kind, id) = (u8::get(from)?, u64::get(from)?);
        let numbered = match kind {
            0 => &mut self.optimizers,
            1 => &mut self.spans,
            2 => &mut self.metrics,
            3 => &mut self.lines,
            8 => &mut self.saved,
            9 => &mut self.operators,
            4 => {
                let name = Persist::get(from)?;
                self.classes.entry(id).or_insert(name);
                return Some(());
            }
            5 => {
                let operation = Persist::get(from)?;
                if id == self.operations.len() as u64 {
                    self.operations.push(operation);
                }
                return Some(());
            }
            _ => {
                let entries = self.modules.entry(id).or_default();
                if kind == 6 {
                    let entry: KnownModule = Persist::get(from)?;
                    if entries.last().is_none_or(|last| last.since < entry.since) {
                        entries.push(entry);
                    }
                } else {
                    let ticks = u64::get(from)?;
                    if let Some(entry) = entries.iter_mut().rev().find(|entry| entry.since <= ticks) {
                        entry.until = entry.until.min(ticks);
                    }
                }
                // Earlier answers may not be true any more.
                self.generation = u64::MAX;
                return Some(());
            }
        };
        let name = Persist::get(from)?;
        numbered.entry(id).or_insert(name);
        Some(())
    }
}

impl SymbolLookup for KnownNames {
    fn generation(&self) -> u64 {
        self.generation
    }
    fn module(&self, address: u64, ticks: u64) -> ModuleAtAddress {
        find(self.modules.get(&address).map_or(&[][..], Vec::as_slice), ticks)
    }
    fn class(&self, address: u64) -> Option<Arc<str>> {
        self.classes.get(&address).cloned()
    }
    fn walk_again(&self, _root: u64) {}
    fn optimizer(&self, id: u64) -> Option<String> {
        self.optimizers.get(&id).cloned()
    }
    fn operation(&self, id: u64) -> Option<CollectiveOperation> {
        self.operations.get(usize::try_from(id).ok()?).cloned()
    }
    fn named(&self, is_span: bool, id: u64) -> Option<String> {
        if is_span { self.spans.get(&id) } else { self.metrics.get(&id) }.cloned()
    }
    fn line(&self, id: u64) -> Option<String> {
        self.lines.get(&id).cloned()
    }
    fn saved(&self, id: u64) -> Option<String> {
        self.saved.get(&id).cloned()
    }
    fn operator(&self, id: u64) -> Option<String> {
        self.operators.get(&id).cloned()
    }
    fn forget_before(&self, _ticks: u64) {}
}
