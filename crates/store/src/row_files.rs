//! Rows that come in bulk, a process at a time, straight to the files of a run directory: for what nobody serves while it
//! comes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use probe_common::durable;
use probe_common::error::{Error, Result};
use probe_common::paths::named;
use probe_proto::decode::Malformed;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Table;

use super::file_names::table_directory;
use super::file_writer::write_file;
use super::identity::{Identity, Origin};
use super::mapping::Mapping;
use super::rows::Rows;
use super::segment::Segment;
use super::strings::Strings;

/// Takes rows in bulk, of one process and one table at a time.
pub trait RowSink {
    /// Takes the rows of `builder`, whose text is in `strings`, and leaves the builder empty.
    ///
    /// # Errors
    /// The file system's; what was pushed does not fit the table's declaration.
    fn write(
        &mut self,
        identity: &Arc<Identity>,
        table: &'static Table,
        builder: &mut BatchBuilder,
        strings: &StringTable,
    ) -> Result<()>;
}

/// Writes files of rows.
#[derive(Debug)]
pub struct RowFiles {
    directory: PathBuf,
    instance: Arc<str>,
    number: u64,
}

impl RowFiles {
    /// For a run directory that has no files yet. `instance` stands for the agent that the rows have not.
    pub fn new(directory: &Path, instance: &str) -> Self {
        Self { directory: directory.to_owned(), instance: instance.into(), number: 0 }
    }
}

impl RowSink for RowFiles {
    fn write(
        &mut self,
        identity: &Arc<Identity>,
        table: &'static Table,
        builder: &mut BatchBuilder,
        strings: &StringTable,
    ) -> Result<()> {
        let Some(rows) = decode(table, builder, strings)? else { return Ok(()) };
        let origin = Origin::batch(&self.instance, self.number);
        let segment = Segment::new(Some(Arc::clone(identity)), Some(origin), rows, self.number);
        let directory = table_directory(&self.directory, table);
        durable::create_directory(&directory).map_err(|error| named(&directory, error))?;
        write_file(&directory, &format!("{:08}.parquet", self.number), table, &[Arc::new(segment)], &|_| ())?;
        self.number += 1;
        Ok(())
    }
}

/// What was pushed to `builder`, as columns; the builder is empty then. None where nothing was.
pub(super) fn decode(table: &'static Table, builder: &mut BatchBuilder, strings: &StringTable) -> Result<Option<Rows>> {
    if builder.rows() == 0 {
        return Ok(None);
    }
    let wrong = |error: Malformed| Error::failed(table.full_name()).because(error);
    let mapping = Mapping::new(&table.wire_schema()).map_err(wrong)?;
    let mut texts = Strings::default();
    if let Some(all) = strings.since(0) {
        texts.extend(all).map_err(wrong)?;
    }
    Rows::decode(&mapping, &builder.take(), &mut texts).map(Some).map_err(wrong)
}
