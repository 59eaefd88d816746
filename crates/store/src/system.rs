//! Tables that the collector itself fills, built anew for each query.

use std::fmt::Debug;
use std::sync::Arc;

use probe_common::error::{Error, Result};
use probe_proto::encode::StringTable;
use probe_proto::table::Table;
use probe_proto::v1;

use crate::identity::Identity;
use crate::mapping::Mapping;
use crate::rows::Rows;
use crate::segment::Segment;
use crate::strings::Strings;

/// A table that the collector itself fills.
pub trait SystemTable: Send + Sync + Debug {
    /// The declaration of the table.
    fn table(&self) -> &'static Table;
    /// All of its rows now.
    fn rows(&self) -> SystemRows;
    /// Of a table that agents fill: rows that are there now beside those that are stored, and whose they are.
    fn beside(&self) -> Vec<(Arc<Identity>, SystemRows)> {
        Vec::new()
    }
}

/// Rows from a [`BatchBuilder`](probe_proto::encode::BatchBuilder), and the strings in them.
#[derive(Debug)]
pub struct SystemRows {
    /// The rows.
    pub batch: v1::Batch,
    /// Their text.
    pub strings: StringTable,
}

/// The rows that the table has now, ready to be scanned; None where it has none.
pub fn system_segment(filled: &dyn SystemTable) -> Result<Option<Arc<Segment>>> {
    let rows = decode(filled.table(), filled.rows())?;
    Ok((!rows.is_empty()).then(|| Arc::new(Segment::new(None, None, rows, 0))))
}

/// The rows that it has now beside those that are stored, ready to be scanned.
pub fn segments_beside(filled: &dyn SystemTable) -> Result<Vec<Arc<Segment>>> {
    let beside = filled.beside().into_iter();
    let segments = beside.map(|(identity, rows)| {
        let rows = decode(filled.table(), rows)?;
        Ok(Arc::new(Segment::new(Some(identity), None, rows, 0)))
    });
    segments.collect()
}

fn decode(table: &'static Table, rows: SystemRows) -> Result<Rows> {
    let SystemRows { batch, strings: texts } = rows;
    let decode = || {
        let mut strings = Strings::default();
        if let Some(texts) = texts.since(0) {
            strings.extend(texts)?;
        }
        Rows::decode(&Mapping::new(&table.wire_schema())?, &batch, &mut strings)
    };
    decode().map_err(|error| Error::failed(format!("{}: {error}", table.full_name())))
}
