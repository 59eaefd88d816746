//! Tables that the collector itself fills, built for each query.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::RecordBatch;
use probe_common::error::{Error, Result};
use probe_proto::table::Table;

use crate::identity::ProcessIdentity;
use crate::rows::BatchRows;
use crate::segment::Segment;

/// A table that the collector itself fills. Its rows have the table's own columns, without those of an identity
/// ([`RecordBatchBuilder`](crate::RecordBatchBuilder) makes them).
pub trait SystemTable: Send + Sync + Debug {
    /// The declaration of the table.
    fn table(&self) -> &'static Table;
    /// All rows that the table has now.
    ///
    /// # Errors
    /// Rows that are not the table's.
    fn rows(&self) -> Result<RecordBatch>;
    /// For a table that agents fill: rows that the collector adds to the stored ones now, with their processes.
    ///
    /// # Errors
    /// Rows that are not the table's.
    fn beside(&self) -> Result<Vec<(Arc<ProcessIdentity>, RecordBatch)>> {
        Ok(Vec::new())
    }
}

/// The rows that the table has now, ready to be scanned; None if the table has no rows.
///
/// # Errors
/// Rows that are not the table's.
pub fn system_segment(filled: &dyn SystemTable) -> Result<Option<Arc<Segment>>> {
    let rows = of_table(filled.table(), &filled.rows()?)?;
    Ok((!rows.is_empty()).then(|| Arc::new(Segment::new(None, None, rows, 0))))
}

/// The rows that the collector adds to the stored ones now ([`SystemTable::beside`]), ready to be scanned.
///
/// # Errors
/// Rows that are not the table's.
pub fn segments_beside(filled: &dyn SystemTable) -> Result<Vec<Arc<Segment>>> {
    let beside = filled.beside()?.into_iter();
    let segments = beside.map(|(identity, rows)| {
        let rows = of_table(filled.table(), &rows)?;
        Ok(Arc::new(Segment::new(Some(identity), None, rows, 0)))
    });
    segments.collect()
}

fn of_table(table: &'static Table, rows: &RecordBatch) -> Result<BatchRows> {
    let wrong = || Error::failed(format!("{}: its rows have the columns of another table", table.full_name()));
    BatchRows::of_record_batch(table, rows).ok_or_else(wrong)
}
