//! Rows on their way to files: a builder a table, emptied into a file when it is full.

use std::sync::Arc;

use probe_common::error::Result;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Row, Text};
use probe_store::ProcessIdentity;
use probe_store::row_files::RowSink;

/// Rows of a file; and bytes of text.
const MAX_ROWS: usize = 1 << 17;
const MAX_TEXT: usize = 16 << 20;

/// The rows of one table.
struct TableRows {
    table: &'static probe_proto::table::Table,
    builder: BatchBuilder,
    strings: StringTable,
}

/// Rows of one process.
pub(crate) struct ProcessRows<'a> {
    files: &'a mut dyn RowSink,
    identity: Arc<ProcessIdentity>,
    tables: Vec<TableRows>,
}

impl<'a> ProcessRows<'a> {
    pub(crate) fn new(files: &'a mut dyn RowSink, identity: ProcessIdentity) -> Self {
        Self { files, identity: Arc::new(identity), tables: Vec::new() }
    }

    /// Adds a row, which `fill` makes with the numbers of its texts.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn push<R: Row>(&mut self, fill: impl FnOnce(&mut dyn FnMut(&str) -> Text) -> R) -> Result<()> {
        let index = match self.tables.iter().position(|rows| std::ptr::eq(rows.table, R::TABLE)) {
            Some(index) => index,
            None => {
                let (builder, strings) = (BatchBuilder::new(R::TABLE), StringTable::default());
                self.tables.push(TableRows { table: R::TABLE, builder, strings });
                self.tables.len() - 1
            }
        };
        let rows = &mut self.tables[index];
        let row = fill(&mut |text| rows.strings.id(text));
        rows.builder.push(row);
        if rows.builder.rows() >= MAX_ROWS || rows.strings.bytes() >= MAX_TEXT {
            Self::flush(self.files, &self.identity, rows)?;
        }
        Ok(())
    }

    /// Writes the remaining rows.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn finish(mut self) -> Result<()> {
        for rows in &mut self.tables {
            Self::flush(self.files, &self.identity, rows)?;
        }
        Ok(())
    }

    fn flush(files: &mut dyn RowSink, identity: &Arc<ProcessIdentity>, rows: &mut TableRows) -> Result<()> {
        files.write(identity, rows.table, &mut rows.builder, &rows.strings)?;
        rows.strings = StringTable::default();
        Ok(())
    }
}

/// A sink that discards all rows.
pub(crate) struct DiscardingSink;

impl RowSink for DiscardingSink {
    fn write(
        &mut self,
        _: &Arc<ProcessIdentity>,
        _: &'static probe_proto::table::Table,
        builder: &mut BatchBuilder,
        _: &StringTable,
    ) -> Result<()> {
        drop(builder.take());
        Ok(())
    }
}
