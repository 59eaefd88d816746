//! What is kept of a row group of a file, so that a query can skip it or answer without it.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use probe_proto::table::Table;

use super::identity::{Identity, Origin};
use super::range::Range;
use super::schema::identity_columns;
use super::sums::{self, Sums};

/// What is known of a row group without reading it.
#[derive(Debug, Clone, PartialEq)]
pub struct RowGroup {
    /// How many.
    pub rows: usize,
    /// What each column of the table takes in the file, identity first; 0 for one that the file lacks.
    pub column_bytes: Box<[u64]>,
    /// Which batches of which agent, where the file says: one stretch, or several that were merged.
    pub origins: Vec<Origin>,
    /// The process that all of these rows came from, where it is one.
    pub identity: Option<Arc<Identity>>,
    /// Of each column of the table, identity first.
    pub(super) ranges: Box<[Range]>,
    /// Of float columns, where the file says.
    pub(super) sums: Sums,
}

impl RowGroup {
    /// What is known of the column at `place` (identity first): smallest and largest value, and number of NULLs.
    pub fn range(&self, table: &Table, place: usize) -> (Option<(ScalarValue, ScalarValue)>, usize) {
        if place < identity_columns(table)
            && let Some(identity) = &self.identity
        {
            return match identity.value(place) {
                value if value.is_null() => (None, self.rows),
                value => (Some((value.clone(), value)), 0),
            };
        }
        let range = &self.ranges[place];
        let kind = table.all_columns().nth(place).map(|column| column.kind);
        (kind.and_then(|kind| range.bounds(kind)), range.nulls)
    }

    /// The sum of the float column at `place` (identity first), where it is known and exact in any order of adding.
    pub fn sum(&self, table: &Table, place: usize) -> Option<f64> {
        let own = place.checked_sub(identity_columns(table))?;
        self.sums.iter().find(|(of, _)| *of == own).map(|(_, sum)| sums::value(*sum))
    }
}
