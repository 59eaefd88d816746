//! Strings of an export by their number, each read once.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Statement;

use super::database::Database;

/// Most strings that are remembered, and most bytes of them.
const MAX_STRINGS: usize = 1 << 20;
const MAX_BYTES: usize = 64 << 20;

/// Strings by number.
pub(crate) struct StringsByNumber<'d> {
    database: &'d Database,
    statement: Option<Statement<'d>>,
    known: HashMap<i64, Option<Arc<str>>>,
    bytes: usize,
}

impl<'d> StringsByNumber<'d> {
    pub(crate) fn new(database: &'d Database) -> Self {
        let statement = database.by_id("StringIds", "id", "value");
        Self { database, statement, known: HashMap::new(), bytes: 0 }
    }

    /// The string of a number; None where the file has none.
    pub(crate) fn get(&mut self, id: i64) -> Option<Arc<str>> {
        if let Some(known) = self.known.get(&id) {
            return known.clone();
        }
        let (database, statement) = (self.database, self.statement.as_mut()?);
        let found: Option<Arc<str>> =
            statement.query_row([id], |row| Ok(database.text(row, 0).map(|text| text.into()))).ok().flatten();
        let bytes = found.as_ref().map_or(0, |text| text.len());
        if self.known.len() < MAX_STRINGS && self.bytes + bytes <= MAX_BYTES {
            self.bytes += bytes;
            self.known.insert(id, found.clone());
        }
        found
    }
}
