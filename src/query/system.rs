//! Tables that the collector itself fills, built anew for each query.

use std::fmt::Debug;
use std::sync::Arc;

use probe_proto::encode::StringTable;
use probe_proto::table::Table;
use probe_proto::v1;

use crate::error::{Error, Result};
use crate::store::{Mapping, Rows, Segment, Strings};

/// A table that the collector itself fills.
pub trait SystemTable: Send + Sync + Debug {
    /// Which.
    fn table(&self) -> &'static Table;
    /// All of its rows now.
    fn rows(&self) -> SystemRows;
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
pub(crate) fn system_segment(filled: &dyn SystemTable) -> Result<Option<Arc<Segment>>> {
    let SystemRows { batch, strings: texts } = filled.rows();
    let decode = || {
        let mut strings = Strings::default();
        if let Some(texts) = texts.since(0) {
            strings.extend(texts)?;
        }
        Rows::decode(&Mapping::new(&filled.table().wire_schema())?, &batch, &mut strings)
    };
    let rows = decode().map_err(|error| Error::failed(format!("{}: {error}", filled.table().full_name())))?;
    Ok((!rows.is_empty()).then(|| Arc::new(Segment::new(None, None, rows, 0))))
}
