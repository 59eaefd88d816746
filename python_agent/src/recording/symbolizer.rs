//! Names for the numbers and addresses in records, from the registry of modules and from every hook that names something.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::module_names::{GENERATION, LEARNED, REGISTRY, WALK_AGAIN};
use super::{checkpoints, collectives, interned, operator_counts, optimizer, spans, user_line};
use crate::shared;
use probe_trace::symbol_lookup::{CollectiveOperation, ModuleAtAddress, SymbolLookup};
use probe_trace::symbol_table::{self, KnownNames, NameTable};

/// Version of all names: changes with every new one.
pub(super) type NamesVersion = (u64, u64);

/// The version of the names that are known now.
pub(super) fn version() -> NamesVersion {
    (GENERATION.load(Ordering::Acquire), LEARNED.load(Ordering::Acquire))
}

/// All names that are known.
pub(super) fn dump() -> KnownNames {
    // Read before the names: a name that is learned meanwhile makes another generation.
    let generation = GENERATION.load(Ordering::Acquire);
    let numbered = |name: &dyn Fn(u64) -> Option<String>| -> NameTable {
        (0..=interned::MAX_NAMES as u64).filter_map(|id| Some((id, name(id)?))).collect()
    };
    let registry = shared::lock(&REGISTRY);
    let (modules, classes) = (registry.modules.clone(), registry.types.clone());
    drop(registry);
    KnownNames {
        generation,
        modules,
        classes,
        optimizers: numbered(&|id| Symbolizer.optimizer(id)),
        operations: collectives::operations(),
        spans: numbered(&|id| Symbolizer.named(true, id)),
        metrics: numbered(&|id| Symbolizer.named(false, id)),
        lines: numbered(&|id| Symbolizer.line(id)),
        saved: checkpoints::texts(),
        operators: numbered(&|id| Symbolizer.operator(id)),
    }
}

/// The names of all hooks, as the analysis asks for them.
#[derive(Debug)]
pub(super) struct Symbolizer;

impl SymbolLookup for Symbolizer {
    fn generation(&self) -> u64 {
        GENERATION.load(Ordering::Acquire)
    }

    fn module(&self, address: u64, ticks: u64) -> ModuleAtAddress {
        let registry = shared::lock(&REGISTRY);
        symbol_table::find(registry.modules.get(&address).map_or(&[][..], Vec::as_slice), ticks)
    }

    fn class(&self, address: u64) -> Option<Arc<str>> {
        shared::lock(&REGISTRY).types.get(&address).cloned()
    }

    fn walk_again(&self, root: u64) {
        WALK_AGAIN.store(root, Ordering::Relaxed);
    }

    fn optimizer(&self, id: u64) -> Option<String> {
        optimizer::class_name(id)
    }

    fn operation(&self, id: u64) -> Option<CollectiveOperation> {
        collectives::operation(id)
    }

    fn named(&self, is_span: bool, id: u64) -> Option<String> {
        spans::name_of(is_span, id)
    }

    fn line(&self, id: u64) -> Option<String> {
        user_line::text_of(id)
    }

    fn operator(&self, id: u64) -> Option<String> {
        operator_counts::name_of(id)
    }

    fn saved(&self, id: u64) -> Option<String> {
        checkpoints::text(id)
    }

    fn forget_before(&self, ticks: u64) {
        let mut registry = shared::lock(&REGISTRY);
        let registry = &mut *registry;
        let modules = &mut registry.modules;
        registry.past.retain(|address| {
            let Some(entries) = modules.get_mut(address) else { return false };
            entries.retain(|entry| entry.until >= ticks);
            let waits = entries.iter().any(|entry| entry.until != u64::MAX);
            if entries.is_empty() {
                modules.remove(address);
            }
            waits
        });
    }
}
