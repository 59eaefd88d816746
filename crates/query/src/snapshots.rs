//! The rows that one query sees: those of all its tables at one instant, which is when the first of them is scanned.

use std::sync::{Arc, OnceLock};

use datafusion::common::{DataFusionError, Result};
use probe_store::{Store, TableSnapshot};

/// All tables of a store at one instant. A plan that has not begun holds none of their rows.
#[derive(Debug)]
pub(super) struct StoreSnapshot {
    store: Arc<Store>,
    taken: OnceLock<Vec<Arc<TableSnapshot>>>,
}

/// One table of them.
#[derive(Debug)]
pub(super) struct QuerySnapshot {
    pub(super) all: Arc<StoreSnapshot>,
    /// The index of the table in the store.
    pub(super) index: usize,
}

impl StoreSnapshot {
    pub(super) fn new(store: &Arc<Store>) -> Self {
        Self { store: Arc::clone(store), taken: OnceLock::new() }
    }

    /// Whether these are tables of `store`.
    pub(super) fn is_of(&self, store: &Arc<Store>) -> bool {
        Arc::ptr_eq(&self.store, store)
    }
}

impl QuerySnapshot {
    /// The table, at the same instant as every other table of the query.
    ///
    /// # Errors
    /// The store has no such table: a mistake of ours.
    pub(super) fn taken(&self) -> Result<&TableSnapshot> {
        let all = self.all.taken.get_or_init(|| self.all.store.snapshot());
        let table = all.get(self.index).map(AsRef::as_ref);
        table.ok_or_else(|| DataFusionError::Internal("a table that the store does not have".into()))
    }
}
