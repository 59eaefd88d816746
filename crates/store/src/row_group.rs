//! Facts about a row group of a file, with which a query can skip it or answer without it.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use probe_proto::table::Table;

use super::column_range::ColumnRange;
use super::identity::{BatchOrigin, ProcessIdentity};
use super::schema::identity_columns;
use super::sums::{self, ExactSums};

/// The facts about a row group that are known without reading it.
#[derive(Debug, Clone, PartialEq)]
pub struct RowGroup {
    /// Number of rows.
    pub rows: usize,
    /// Bytes of each column of the table in the file, identity first; 0 for one that the file lacks.
    pub column_bytes: Box<[u64]>,
    /// The batches and their agent, where the file names them: one range, or several that were merged.
    pub origins: Vec<BatchOrigin>,
    /// The process of all rows, where it is one.
    pub identity: Option<Arc<ProcessIdentity>>,
    /// The range of each column of the table, identity first.
    pub(super) ranges: Box<[ColumnRange]>,
    /// The sums of float columns, where the file has them.
    pub(super) sums: ExactSums,
}

impl RowGroup {
    /// What is known of the column with this index (identity first): smallest and largest value, and number of NULLs.
    pub fn range(&self, table: &Table, index: usize) -> (Option<(ScalarValue, ScalarValue)>, usize) {
        if index < identity_columns(table)
            && let Some(identity) = &self.identity
        {
            return match identity.value(index) {
                value if value.is_null() => (None, self.rows),
                value => (Some((value.clone(), value)), 0),
            };
        }
        let range = &self.ranges[index];
        let kind = table.all_columns().nth(index).map(|column| column.kind);
        (kind.and_then(|kind| range.bounds(kind)), range.nulls)
    }

    /// The sum of the float column with this index (identity first), where it is known and exact in any order of adding.
    pub fn sum(&self, table: &Table, index: usize) -> Option<f64> {
        let own = index.checked_sub(identity_columns(table))?;
        sums::value(&self.sums, own)
    }
}
