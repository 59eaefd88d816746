//! The tables of a store: the built-in ones, and those that its run's program declared while it trained.
//!
//! Declared tables follow the built-in ones, in the order of their declarations, and stay to the end. Their slots are made
//! ahead, so that no query and no append waits for a declaration.

use std::sync::{PoisonError, RwLock};

use probe_proto::table::Table;
use probe_proto::tables::{TABLES, custom};
use probe_proto::v1;

use super::schema;

/// Slots for declared tables in a store.
pub(super) const TABLE_SLOTS: usize = custom::MAX_TABLES;

/// The tables that the program declared.
#[derive(Debug, Default)]
pub(super) struct DeclaredTables(RwLock<Vec<&'static Table>>);

impl DeclaredTables {
    /// The declarations of a run directory's `tables`.
    pub(super) fn of(tables: Vec<&'static Table>) -> Self {
        Self(RwLock::new(tables))
    }

    fn own(&self) -> Vec<&'static Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All tables, by index.
    pub(super) fn all(&self) -> Vec<&'static Table> {
        TABLES.iter().copied().chain(self.own()).collect()
    }

    /// The table with this index.
    pub(super) fn get(&self, index: usize) -> Option<&'static Table> {
        match index.checked_sub(TABLES.len()) {
            None => TABLES.get(index).copied(),
            Some(own) => self.0.read().unwrap_or_else(PoisonError::into_inner).get(own).copied(),
        }
    }

    /// The index of `table`.
    pub(super) fn index_of(&self, table: &Table) -> Option<usize> {
        let own = || {
            let own = self.0.read().unwrap_or_else(PoisonError::into_inner);
            own.iter().position(|known| std::ptr::eq(*known, table)).map(|index| TABLES.len() + index)
        };
        schema::built_in_index(table).or_else(own)
    }

    /// Adds a table that the program declares, as [`super::Store::declare`] does.
    pub(super) fn declare(&self, schema: &v1::TableSchema) -> Result<&'static Table, String> {
        let columns = custom::columns_of(schema)?;
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = own.iter().find(|table| table.full_name() == schema.name) {
            return match custom::difference(known, &columns) {
                None => Ok(known),
                Some(how) => Err(format!("the run has another table {}: {how}", schema.name)),
            };
        }
        if own.len() >= TABLE_SLOTS {
            return Err(format!("the run has {TABLE_SLOTS} tables of its program already, and no more can be kept"));
        }
        let table = custom::declare(&schema.name, &columns)?;
        own.push(table);
        Ok(table)
    }
}
