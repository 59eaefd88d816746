//! The tables of a store: those that everybody knows, and those that its run's program declared while it trained.
//!
//! The latter stand behind the former, in the order in which they came, and stay to the end. Their places are made ahead,
//! so that nobody who reads or appends waits for a declaration.

use std::sync::{PoisonError, RwLock};

use probe_proto::table::Table;
use probe_proto::tables::{TABLES, custom};
use probe_proto::v1;

use super::schema;

/// Places for tables in a store.
pub(super) const PLACES: usize = custom::MAX_TABLES;

/// Those that the program declared.
#[derive(Debug, Default)]
pub(super) struct Declared(RwLock<Vec<&'static Table>>);

impl Declared {
    /// With those that a run's directory has.
    pub(super) fn of(tables: Vec<&'static Table>) -> Self {
        Self(RwLock::new(tables))
    }

    fn own(&self) -> Vec<&'static Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All tables, by place.
    pub(super) fn all(&self) -> Vec<&'static Table> {
        TABLES.iter().copied().chain(self.own()).collect()
    }

    /// The table at a place.
    pub(super) fn get(&self, place: usize) -> Option<&'static Table> {
        match place.checked_sub(TABLES.len()) {
            None => TABLES.get(place).copied(),
            Some(own) => self.0.read().unwrap_or_else(PoisonError::into_inner).get(own).copied(),
        }
    }

    /// The place of `table`.
    pub(super) fn place(&self, table: &Table) -> Option<usize> {
        let own = || {
            let own = self.0.read().unwrap_or_else(PoisonError::into_inner);
            own.iter().position(|known| std::ptr::eq(*known, table)).map(|place| TABLES.len() + place)
        };
        schema::place(table).or_else(own)
    }

    /// See [`super::Store::declare`].
    pub(super) fn declare(&self, schema: &v1::TableSchema) -> Result<&'static Table, String> {
        let columns = custom::columns_of(schema)?;
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = own.iter().find(|table| table.full_name() == schema.name) {
            return match custom::difference(known, &columns) {
                None => Ok(known),
                Some(how) => Err(format!("the run has another table {}: {how}", schema.name)),
            };
        }
        if own.len() >= PLACES {
            return Err(format!("the run has {PLACES} tables of its program already, and no more can be kept"));
        }
        let table = custom::declare(&schema.name, &columns)?;
        own.push(table);
        Ok(table)
    }
}
