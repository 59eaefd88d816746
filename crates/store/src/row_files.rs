//! Rows that come in bulk, a process at a time, written directly to the files of a run directory that no collector serves
//! meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use probe_common::durable;
use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use probe_proto::decode::Malformed;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Table;

use super::column_mapping::ColumnMapping;
use super::file_names::table_directory;
use super::file_writer::write_file;
use super::identity::{BatchOrigin, ProcessIdentity};
use super::rows::BatchRows;
use super::segment::Segment;
use super::strings::StringReceiver;

/// A sink for rows that come in bulk, of one process and one table at a time.
pub trait RowSink {
    /// Writes the rows of `builder`, whose text is in `strings`, and leaves the builder empty.
    ///
    /// # Errors
    /// The file system's; the rows do not fit the table's declaration.
    fn write(
        &mut self,
        identity: &Arc<ProcessIdentity>,
        table: &'static Table,
        builder: &mut BatchBuilder,
        strings: &StringTable,
    ) -> Result<()>;
}

/// Writes rows to the files of a run directory.
#[derive(Debug)]
pub struct RowFiles {
    directory: PathBuf,
    instance: Arc<str>,
    number: u64,
}

impl RowFiles {
    /// A sink for a run directory that has no files yet. The rows have no agent: `instance` stands for it.
    pub fn new(directory: &Path, instance: &str) -> Self {
        Self { directory: directory.to_owned(), instance: instance.into(), number: 0 }
    }
}

impl RowSink for RowFiles {
    fn write(
        &mut self,
        identity: &Arc<ProcessIdentity>,
        table: &'static Table,
        builder: &mut BatchBuilder,
        strings: &StringTable,
    ) -> Result<()> {
        let Some(rows) = decode(table, builder, strings)? else { return Ok(()) };
        let origin = BatchOrigin::batch(&self.instance, self.number);
        let segment = Segment::new(Some(Arc::clone(identity)), Some(origin), rows, self.number);
        let directory = table_directory(&self.directory, table);
        durable::create_directory(&directory).map_err(|error| io_error_at(&directory, error))?;
        write_file(&directory, &format!("{:08}.parquet", self.number), table, &[Arc::new(segment)], &|_| ())?;
        self.number += 1;
        Ok(())
    }
}

/// The rows of `builder` as columns, which leaves it empty; None where it has no rows.
pub(super) fn decode(
    table: &'static Table,
    builder: &mut BatchBuilder,
    strings: &StringTable,
) -> Result<Option<BatchRows>> {
    if builder.rows() == 0 {
        return Ok(None);
    }
    let wrong = |error: Malformed| Error::failed(table.full_name()).because(error);
    let mapping = ColumnMapping::new(&table.wire_schema()).map_err(wrong)?;
    let mut texts = StringReceiver::default();
    if let Some(all) = strings.since(0) {
        texts.extend(all).map_err(wrong)?;
    }
    BatchRows::decode(&mapping, &builder.take(), &mut texts).map(Some).map_err(wrong)
}
